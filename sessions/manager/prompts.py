"""From what a caller sends to tokens: only what is new is ever rendered and tokenised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...server.text.answer_format import AnswerFormat
from ...server.text.chat_template import ChatTemplate, LogEnd
from ...server.text.prompt_text import PromptText
from ...server.text.tokenizer import Tokenizer
from ...server.text.tools_in_text import ToolsInText
from ..errors import ContextOverflow, RequestError
from ..messages import Message, Role, Tool
from ..session import EntryKind, LogPart, NewEntry, Session, SessionLog
from .requests import MessagesInput, TextInput, TokenIdsInput, ToolResultInput, TurnInput

TemplateMessage = dict[str, Any]

_QUESTION = Message(role=Role.USER, content="-")
_ANSWER = Message(role=Role.ASSISTANT)  # an answer in the log: its text does not matter to what follows it


class PromptBuilder:
    """Renders and tokenises. Safe to call from any thread; not fast for long texts."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, answer_format: AnswerFormat) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._tools_in_text = ToolsInText(template.source, answer_format)
        special = set(tokenizer.token_bytes.special_ids)
        self._longest_token = max(
            len(tokenizer.token_bytes[token_id]) for token_id in range(tokenizer.vocab_size) if token_id not in special
        )

    def entry(
        self, session: Session, log: SessionLog, turn_input: TurnInput | None, kind: EntryKind, limit: int
    ) -> NewEntry | None:
        """What ``turn_input`` adds to a session's log: an INPUT, or a PROMPT that an answer follows.

        None when it adds nothing: an answer that was cut off is continued as it stands.

        Raises:
            ContextOverflow: the text cannot fit ``limit`` tokens, whatever its tokens are.
            RequestError: the template refuses the messages, or there is nothing to answer.
        """
        match turn_input:
            case None:
                return self._open_answer(session, log, limit)
            case MessagesInput(messages):
                return self._messages(session, log, messages, kind, limit)
            case ToolResultInput():
                return self._messages(session, log, (_tool_message(turn_input),), kind, limit)
            case TextInput(text):
                self._require_possible(text, limit, "input")
                token_ids = self._raw_text(log, text)
            case TokenIdsInput(token_ids):
                pass
        return NewEntry(kind=EntryKind.INPUT, token_ids=self._opening(session, log, limit) + tuple(token_ids))

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        template_arguments: dict[str, Any],
        limit: int,
    ) -> tuple[int, ...]:
        """Tokens of a conversation from its beginning, up to the beginning of the answer."""
        return self._encode(self._rendered(messages, tools, template_arguments), limit, "messages")

    def rewritten_answers(
        self,
        parts: Sequence[LogPart],
        sent: Sequence[Message],
        tools: Sequence[Tool],
        template_arguments: dict[str, Any],
    ) -> int:
        """How many answers among ``parts`` of a log the template would write otherwise, from what was sent instead.

        ``sent``: the messages that stand for ``parts``, and those that follow. 0 where the template refuses them: it
        then writes nothing.
        """
        answers = [part.token_ids for part in parts if part.entry.kind is EntryKind.OUTPUT]
        start = next((index for index, message in enumerate(sent) if message.role is not Role.TOOL), len(sent))
        opening = (_QUESTION,) if start < len(sent) and sent[start].role is Role.ASSISTANT else ()
        try:
            text = self._rendered((*opening, *sent[start:]), tools, template_arguments).text
        except RequestError:
            return 0
        return sum(self._said(token_ids) not in text for token_ids in answers)

    def _said(self, token_ids: Sequence[int]) -> str:
        """An answer as text, without the token that ends the turn."""
        said = token_ids[:-1] if token_ids[-1] in self.tokenizer.eos_token_ids else token_ids
        return self.tokenizer.decode(said, skip_special=False)

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Tool], template_arguments: dict[str, Any]
    ) -> PromptText:
        return self.template.render(
            self._tools_in_text.opening([as_template_message(message) for message in messages], tools),
            tools,
            add_generation_prompt=True,
            **template_arguments,
        )

    def prompt_after_answer(
        self,
        new: Sequence[Message],
        tools: Sequence[Tool],
        template_arguments: dict[str, Any],
        last_token_id: int,
        limit: int,
    ) -> tuple[int, ...]:
        """Tokens that follow an answer which ended with ``last_token_id``, up to the beginning of the next answer."""
        rendered = self.template.render_continuation(
            [as_template_message(_ANSWER)],
            self._tools_in_text.following([as_template_message(message) for message in new]),
            tools,
            log_end=self._answer_end(last_token_id),
            add_generation_prompt=True,
            **template_arguments,
        )
        return self._encode(rendered, limit, "messages")

    def completion(self, text: str, limit: int) -> tuple[int, ...]:
        """Tokens of a plain completion's prompt."""
        self._require_possible(text, limit, "prompt")
        return tuple(self.tokenizer.encode_completion(text))

    def _messages(
        self, session: Session, log: SessionLog, new: Sequence[Message], kind: EntryKind, limit: int
    ) -> NewEntry:
        to_render = self._tools_in_text.following([as_template_message(message) for message in new])
        if not log.parts:
            to_render = self._tools_in_text.opening([*_system(session), *to_render], session.tools)
        rendered = self._continuation(session, log, to_render, add_generation_prompt=kind is EntryKind.PROMPT)
        token_ids = self._encode(rendered, limit, "input.messages")
        if not token_ids:
            raise RequestError("the chat template writes nothing for these messages", field="input.messages")
        return NewEntry(kind=kind, token_ids=token_ids, messages=tuple(new))

    def _open_answer(self, session: Session, log: SessionLog, limit: int) -> NewEntry | None:
        """The beginning of an answer where the log ends with whole messages; None where an answer is open."""
        if not log.parts:
            raise RequestError(
                "there is nothing to answer yet", field="input", remedy="send messages, text or token ids"
            )
        if self._log_end(log) is LogEnd.OPEN or not has_messages(session, log):
            return None
        rendered = self._continuation(session, log, [], add_generation_prompt=True)
        token_ids = self._encode(rendered, limit, "input")
        return NewEntry(kind=EntryKind.PROMPT, token_ids=token_ids) if token_ids else None

    def _continuation(
        self, session: Session, log: SessionLog, new: Sequence[TemplateMessage], *, add_generation_prompt: bool
    ) -> PromptText:
        """The text of ``new`` behind a log. The template knows messages alone; here they are part of the input."""
        try:
            return self.template.render_continuation(
                [as_template_message(message) for message in self._before(session, log)],
                new,
                session.tools,
                log_end=self._log_end(log),
                add_generation_prompt=add_generation_prompt,
            )
        except RequestError as error:
            error.field = f"input.{error.field or 'messages'}"
            raise

    def _opening(self, session: Session, log: SessionLog, limit: int) -> tuple[int, ...]:
        """The system prompt's tokens where text or tokens as the caller gave them are the first of a log."""
        if log.parts or (session.system is None and not session.tools):
            return ()
        opening = self._tools_in_text.opening(_system(session), session.tools)
        rendered = self.template.render(opening, session.tools, add_generation_prompt=False)
        return self._encode(rendered, limit, "system")

    def _raw_text(self, log: SessionLog, text: str) -> tuple[int, ...]:
        if log.parts:
            return tuple(self.tokenizer.encode(text, allow_special=True))
        return tuple(self.tokenizer.encode_completion(text))

    def _before(self, session: Session, log: SessionLog) -> tuple[Message, ...]:
        """What the log's end says, as far as the text that follows depends on it: its last message."""
        if not has_messages(session, log):
            return ()
        last = log.parts[-1]
        if last.entry.kind is not EntryKind.OUTPUT and last.entry.messages and not self._opens_answer(last):
            return last.entry.messages[-1:]
        return (_ANSWER,)

    def _log_end(self, log: SessionLog) -> LogEnd:
        if not log.parts:
            return LogEnd.RENDERED
        last = log.parts[-1]
        if last.entry.kind is EntryKind.OUTPUT:
            return self._answer_end(last.token_ids[-1])
        written_whole = last.whole and last.entry.kind is EntryKind.INPUT and last.entry.messages
        return LogEnd.RENDERED if written_whole else LogEnd.OPEN

    def _opens_answer(self, part: LogPart) -> bool:
        return part.entry.kind is EntryKind.PROMPT and part.whole

    def _answer_end(self, last_token_id: int) -> LogEnd:
        return LogEnd.END_OF_TURN if last_token_id in self.tokenizer.eos_token_ids else LogEnd.OPEN

    def _encode(self, rendered: PromptText, limit: int, field: str) -> tuple[int, ...]:
        self._require_possible(rendered.text, limit, field)
        return tuple(self.tokenizer.encode_prompt(rendered))

    def _require_possible(self, text: str, limit: int, field: str) -> None:
        """Refuse a text that even the longest tokens would not bring under the limit, before tokenising it."""
        fewest = len(text.encode(errors="replace")) // self._longest_token  # of bytes
        if fewest > limit:
            raise ContextOverflow(
                f"the text has more than {fewest} tokens, the context holds {limit}",
                limit=limit,
                field=field,
                remedy="send less",
            )


def has_messages(session: Session, log: SessionLog) -> bool:
    """Whether the log is a conversation, rather than text that no template wrote."""
    opened_by_template = session.system is not None or bool(session.tools)
    return bool(log.parts) and (opened_by_template or any(part.entry.messages for part in log.parts))


def in_chat(session: Session, log: SessionLog, entry: NewEntry | None) -> bool:
    """Whether what the model says next is a message of a conversation."""
    return has_messages(session, log) or (entry is not None and bool(entry.messages))


def as_template_message(message: Message) -> TemplateMessage:
    """A message in the shape that chat templates read."""
    rendered: TemplateMessage = {"role": message.role.value, "content": message.content}
    if message.tool_calls:
        rendered["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    optional = {
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning_content": message.reasoning,
    }
    return rendered | {key: value for key, value in optional.items() if value is not None}


def _system(session: Session) -> list[TemplateMessage]:
    return [] if session.system is None else [{"role": Role.SYSTEM.value, "content": session.system}]


def _tool_message(result: ToolResultInput) -> Message:
    return Message(role=Role.TOOL, content=result.content, tool_call_id=result.tool_call_id, name=result.name)
