"""Conversations to text, by the template that comes with a model."""

from __future__ import annotations

import enum
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.runtime import Undefined

from ...sessions.errors import ModelError, RequestError
from .messages import Message, prepare_messages
from .prompt_text import Origin, PromptText, TextPart
from .template_budget import MAX_CHARACTERS, Budget
from .template_sandbox import TemplateEnvironment

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
_MAX_SOURCE_CHARACTERS = 1 << 20
_MARK_OPEN, _MARK_CLOSE = "\ue0f0", "\ue0f1"  # private use: no text means anything by them
Tool = Mapping[str, Any]


class LogEnd(enum.Enum):
    """How the tokens of a conversation end, so that the text which follows them fits."""

    RENDERED = "rendered"  # its last message was written by the template, with all that closes it
    END_OF_TURN = "end of turn"  # the model sampled an assistant's message and the token that ends it
    OPEN = "open"  # the model sampled an assistant's message that was cut off: by length or by a stop string


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """What a template needs to know of the tokenizer.

    ``variables``: ``bos_token`` and its like. ``special_texts``: names of special tokens, which stay text inside
    messages. ``end_of_turn_texts``: those that end an assistant's turn.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    special_texts: tuple[str, ...] = ()
    end_of_turn_texts: tuple[str, ...] = ()


class ChatTemplate:
    """Renders conversations with a Jinja template in a sandbox, bounded in time and size.

    Names of special tokens inside messages and tools are kept from meaning those tokens: they come out as parts of
    their own with ``Origin.LITERAL``.

    Raises:
        ModelError: the template is not valid Jinja, or uses what templates may not use.
    """

    def __init__(
        self,
        source: str = CHATML,
        tokens: TemplateTokens | None = None,
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._tokens = tokens or TemplateTokens()
        self._clock = clock
        self._environment = TemplateEnvironment()
        self._environment.add_filter("tojson", _to_json)
        if len(source) > _MAX_SOURCE_CHARACTERS:
            raise ModelError(f"the chat template has {len(source):,} characters", field="chat_template")
        try:
            self._template = self._environment.compile_charged(source)
        except (TemplateError, RecursionError) as error:
            raise ModelError(f"the chat template cannot be used: {error}", field="chat_template") from error
        special = "|".join(re.escape(text) for text in self._tokens.special_texts)
        self._special = re.compile(special) if special else None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        /,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> PromptText:
        """The whole conversation as text. ``variables`` reach the template (``enable_thinking=False``).

        Raises:
            RequestError: the template refuses the messages, fails on them, or exceeds its bounds.
        """
        marks = _Marks(self._special)
        text = self._run(marks, prepare_messages(messages), tools, add_generation_prompt, variables)
        return PromptText(tuple(marks.parts(text)))

    def render_continuation(
        self,
        previous: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        /,
        *,
        log_end: LogEnd,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> PromptText:
        """The text that follows the tokens of ``previous``, which are never rendered again.

        The template renders a short conversation that ends like the real one, with a mark as the text of its last
        message; what comes after the mark is what the template puts there. So nothing that a template writes at the
        beginning (a default system message, tools, a date) is written twice, and what it would change in the past
        (old reasoning, for instance) stays as it was.

        Raises:
            RequestError: as ``render``; or the template cannot be continued after these messages.
        """
        if not previous:
            return self.render(new, tools, add_generation_prompt=add_generation_prompt, **variables)
        marks = _Marks(self._special)
        mark = marks.anchor()
        short = _skeleton(previous, mark)
        following = self._after(
            mark, self._run(marks, [*short, *prepare_messages(new)], tools, add_generation_prompt, variables)
        )
        if log_end is LogEnd.RENDERED:
            closing = self._after(mark, self._run(marks, short, tools, False, variables))
            if not following.startswith(closing):
                _refuse_continuation("the template ends the last message otherwise when another follows")
            return PromptText(tuple(marks.parts(following[len(closing) :])))
        return self._after_sampled(following, marks, log_end)

    def _after_sampled(self, following: str, marks: _Marks, log_end: LogEnd) -> PromptText:
        """Continue after a sampled message: its end-of-turn token is written unless the log has it."""
        if log_end is LogEnd.OPEN:
            return PromptText(tuple(marks.parts(following)))
        for text in self._tokens.end_of_turn_texts:
            before, found, rest = following.partition(text)
            if found and not before.strip():
                return PromptText(tuple(marks.parts(rest)), already_logged=text)
        return PromptText(tuple(marks.parts(following)))

    def _after(self, mark: str, text: str) -> str:
        _, found, following = text.rpartition(mark)
        if not found:
            _refuse_continuation("the template does not write the last message")
        return following

    def _run(
        self,
        marks: _Marks,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        names: dict[str, Any] = {
            **self._tokens.variables,
            "raise_exception": _raise_exception,
            "strftime_now": lambda layout: self._clock().strftime(layout),
            **marks.neutralised(variables),
            "messages": marks.neutralised(messages),
            "tools": marks.neutralised(list(tools)) or None,
            "add_generation_prompt": add_generation_prompt,
        }
        budget = Budget()
        try:
            with self._environment.budget(budget):
                text = "".join(self._template.generate(names))
        except TemplateError as error:
            raise RequestError(f"the chat template refuses the messages: {error}", field="messages") from error
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise RequestError(f"the chat template fails on the messages: {error}", field="messages") from error
        if len(text) > MAX_CHARACTERS:
            raise RequestError(f"the conversation is longer than {MAX_CHARACTERS} characters", field="messages")
        return text


class _Marks:
    """Private marks in what a template is given: for special tokens' names, and for the place to continue from."""

    def __init__(self, special: re.Pattern[str] | None) -> None:
        self._special = special
        self._nonce = str(secrets.randbits(64))  # digits: a template may change the case of a text
        self._literals: list[str] = []
        self._mark = re.compile(f"{_MARK_OPEN}{self._nonce}:([0-9]+){_MARK_CLOSE}")

    def anchor(self) -> str:
        return f"{_MARK_OPEN}{self._nonce}{_MARK_CLOSE}"

    def neutralised(self, value: Any) -> Any:
        """The value with special tokens' names replaced by marks in all its texts."""
        if self._special is None:
            return value
        if isinstance(value, str):
            return self._special.sub(self._replace, value)
        if isinstance(value, Mapping):
            return {self.neutralised(key): self.neutralised(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.neutralised(part) for part in value]
        return value

    def parts(self, text: str) -> Iterator[TextPart]:
        """The rendered text, cut at the marks."""
        pieces = self._mark.split(text)
        for index, piece in enumerate(pieces):
            if index % 2:
                yield TextPart(self._literals[int(piece)], Origin.LITERAL)
            elif piece:
                yield TextPart(piece, Origin.TEMPLATE)

    def _replace(self, match: re.Match[str]) -> str:
        self._literals.append(match[0])
        return f"{_MARK_OPEN}{self._nonce}:{len(self._literals) - 1}{_MARK_CLOSE}"


def _skeleton(previous: Sequence[Message], mark: str) -> list[Message]:
    """A short conversation that ends with a message of the same role as the last one, whose text is the mark."""
    last_role = str(previous[-1].get("role", ""))
    ending: Message = {"role": last_role, "content": mark}
    if last_role == "system":
        return [ending]
    if last_role == "user":
        return [ending]
    before: list[Message] = [{"role": "user", "content": "-"}]
    if last_role == "tool":
        call = _last_call(previous)
        before.append({"role": "assistant", "content": "", "tool_calls": [call]})
        ending = {**previous[-1], "tool_call_id": call["id"], "content": mark}
    return [*before, ending]


def _last_call(previous: Sequence[Message]) -> Mapping[str, Any]:
    identity = str(previous[-1].get("tool_call_id") or "000000000")
    name = str(previous[-1].get("name") or "tool")
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": {}}}


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _refuse_continuation(why: str) -> NoReturn:
    raise RequestError(f"the conversation cannot be continued: {why}", field="messages")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: characters stay characters, and HTML is not escaped."""
    if isinstance(value, Undefined):
        raise TemplateError("tojson of an undefined value")
    if indent is not None and not 0 <= indent <= 16:
        raise TemplateError("tojson indents too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
