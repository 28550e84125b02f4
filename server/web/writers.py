"""From a turn's events to the bytes of an answer, streamed or whole.

A streamed token costs one encoded string between two constant pieces of bytes: what does not change during a turn is
encoded once, at its start.
"""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ...sessions.errors import SessileError
from ...sessions.manager.turn_events import TextDelta, TurnBegun, TurnDelta, TurnFinished
from ..engine.messages import FinishReason, TokenLogprobs
from ..text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from .answers import (
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    FinishWord,
    MalformedToolCall,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
    usage_of,
)
from .errors import error_body
from .event_stream import COMMENT

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class TokenBytes(Protocol):
    """The bytes of each token, by its id. Those of special ones are in no text; nor is the space that a text may begin
    with, where ``strips_first_space``."""

    @property
    def special_ids(self) -> Collection[int]: ...

    @property
    def strips_first_space(self) -> bool: ...

    def __getitem__(self, token_id: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class TurnHead:
    """What all chunks of one answer say."""

    id: str
    created: int
    model: str
    fingerprint: str
    include_usage: bool
    want_logprobs: bool

    @classmethod
    def new(cls, prefix: str, model: str, fingerprint: str, *, include_usage: bool, want_logprobs: bool) -> TurnHead:
        """The head of a new answer."""
        return cls(
            f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model, fingerprint[:16], include_usage, want_logprobs
        )


class TurnWriter(Protocol):
    """Bytes of one answer. ``delta`` may be empty bytes: nothing to send yet."""

    @property
    def ping(self) -> bytes:
        """What is sent when there was nothing to send for long."""
        ...

    def begun(self, begun: TurnBegun) -> None:
        """Take note of what is known before the first delta."""
        ...

    def opening(self) -> bytes:
        """What comes before the first delta of a stream."""
        ...

    def delta(self, delta: TurnDelta) -> bytes:
        """One event of a stream."""
        ...

    def ended(self, finished: TurnFinished) -> bytes:
        """The event of a stream that says why the answer ended."""
        ...

    def done(self, finished: TurnFinished) -> bytes:
        """What comes at the end of a stream, with the usage if it is wanted."""
        ...

    def failed(self, error: SessileError) -> bytes:
        """The last events of a stream that breaks off."""
        ...

    def answer(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> bytes:
        """The answer as one JSON object."""
        ...


class ChoiceWriter(TurnWriter, Protocol):
    """Bytes of an answer that may be one of several choices."""

    def choice(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> ChatChoice | TextChoice:
        """The answer as a part of a JSON object."""
        ...

    def whole(self, choices: Sequence[ChatChoice | TextChoice], finished: TurnFinished) -> bytes:
        """The JSON object of one answer or several. ``finished`` has the usage of all."""
        ...


class _StreamWriter:
    """The frame of a chunk, and what both endpoints' streams do alike."""

    ping = COMMENT

    def __init__(self, head: TurnHead, kind: str, token_bytes: TokenBytes, index: int) -> None:
        self._head = head
        self._index = index
        self._choice = b'{"index":%d,' % index
        self._token_bytes = token_bytes
        start = {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }
        self._start = b"data: " + _encode(start)[:-1] + b',"choices":['
        self._end = b',"usage":null}\n\n' if head.include_usage else b"}\n\n"

    def begun(self, begun: TurnBegun) -> None:
        """Nothing of it is told in OpenAI's chunks."""

    def failed(self, error: SessileError) -> bytes:
        return b"data: " + _encode(error_body(error)) + b"\n\n" + DONE

    def _chunk(self, choice: bytes) -> bytes:
        return self._start + choice + b"]" + self._end

    def done(self, finished: TurnFinished) -> bytes:
        """See ``TurnWriter``."""
        if not self._head.include_usage:
            return DONE
        return self._start + b'],"usage":' + _encode(usage_of(finished)) + b"}\n\n" + DONE

    def _token(self, token_id: int) -> str:
        """A token as text; half a character shows as U+FFFD."""
        return self._token_bytes[token_id].decode("utf-8", "replace")


class ChatWriter(_StreamWriter):
    """Answers of ``/v1/chat/completions``."""

    def __init__(self, head: TurnHead, token_bytes: TokenBytes, index: int = 0) -> None:
        super().__init__(head, "chat.completion.chunk", token_bytes, index)

    def opening(self) -> bytes:
        return self._chunk(
            self._choice + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        )

    def delta(self, delta: TurnDelta) -> bytes:
        if not isinstance(delta, TextDelta):
            added = _encode(_chat_delta(delta))
            return self._chunk(self._choice + b'"delta":' + added + b',"logprobs":null,"finish_reason":null}')
        if not self._head.want_logprobs:
            if not delta.text:
                return b""
            content = _encode(delta.text)
            return (
                self._start
                + self._choice
                + b'"delta":{"content":'
                + content
                + b'},"logprobs":null,"finish_reason":null}]'
                + self._end
            )
        logprobs = _encode(ChatLogprobs(self._logprobs(delta)))
        content = _encode(delta.text)
        return self._chunk(
            self._choice + b'"delta":{"content":' + content + b'},"logprobs":' + logprobs + b',"finish_reason":null}'
        )

    def ended(self, finished: TurnFinished) -> bytes:
        reason = _encode(finish_word(finished))
        return self._chunk(self._choice + b'"delta":{},"logprobs":null,"finish_reason":' + reason + b"}")

    def choice(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> ChatChoice:
        logprobs = [entry for delta in deltas if isinstance(delta, TextDelta) for entry in self._logprobs(delta)]
        return ChatChoice(
            index=self._index,
            message=_answer_message(deltas, finished),
            logprobs=ChatLogprobs(logprobs) if self._head.want_logprobs else None,
            finish_reason=finish_word(finished),
        )

    def answer(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> bytes:
        return self.whole([self.choice(deltas, finished)], finished)

    def whole(self, choices: Sequence[ChatChoice | TextChoice], finished: TurnFinished) -> bytes:
        head = self._head
        return _encode(
            ChatCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.fingerprint,
                choices=[choice for choice in choices if isinstance(choice, ChatChoice)],
                usage=usage_of(finished),
            )
        )

    def _logprobs(self, delta: TextDelta) -> list[TokenLogprob]:
        return [self._entry(*pair) for pair in zip(delta.token_ids, delta.logprobs, strict=False)]

    def _entry(self, token_id: int, found: TokenLogprobs) -> TokenLogprob:
        alternatives = [
            TopLogprob(self._token(other), logprob, list(self._token_bytes[other]))
            for other, logprob in zip(found.top_token_ids, found.top_logprobs, strict=True)
        ]
        return TokenLogprob(self._token(token_id), found.logprob, list(self._token_bytes[token_id]), alternatives)


class _TextOffset:
    """Where in the text a token begins; a delta may have several tokens, and text that was held back before."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = token_bytes.strips_first_space
        self.characters = 0

    def pass_by(self, token_id: int) -> None:
        if token_id in self._bytes.special_ids:
            return
        piece = self._bytes[token_id]
        if self._drop_space and piece:
            self._drop_space = False
            piece = piece.removeprefix(b" ")
        self.characters += len(self._decoder.decode(piece))


class CompletionWriter(_StreamWriter):
    """Answers of ``/v1/completions``."""

    def __init__(self, head: TurnHead, token_bytes: TokenBytes, index: int = 0) -> None:
        super().__init__(head, "text_completion", token_bytes, index)
        self._offset = _TextOffset(token_bytes)

    def opening(self) -> bytes:
        return b""

    def delta(self, delta: TurnDelta) -> bytes:
        if not isinstance(delta, TextDelta) or not (delta.text or self._head.want_logprobs):
            return b""
        logprobs = _encode(self._logprobs([delta])) if self._head.want_logprobs else b"null"
        text = _encode(delta.text)
        return self._chunk(self._choice + b'"text":' + text + b',"logprobs":' + logprobs + b',"finish_reason":null}')

    def ended(self, finished: TurnFinished) -> bytes:
        reason = _encode(finish_word(finished))
        return self._chunk(self._choice + b'"text":"","logprobs":null,"finish_reason":' + reason + b"}")

    def choice(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> TextChoice:
        texts = [delta for delta in deltas if isinstance(delta, TextDelta)]
        return TextChoice(
            index=self._index,
            text="".join(delta.text for delta in texts),
            logprobs=self._logprobs(texts) if self._head.want_logprobs else None,
            finish_reason=finish_word(finished),
        )

    def answer(self, deltas: Sequence[TurnDelta], finished: TurnFinished) -> bytes:
        return self.whole([self.choice(deltas, finished)], finished)

    def whole(self, choices: Sequence[ChatChoice | TextChoice], finished: TurnFinished) -> bytes:
        head = self._head
        usage: Usage = usage_of(finished)
        return _encode(
            TextCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.fingerprint,
                choices=[choice for choice in choices if isinstance(choice, TextChoice)],
                usage=usage,
            )
        )

    def _logprobs(self, deltas: Sequence[TextDelta]) -> TextLogprobs:
        found = TextLogprobs([], [], [], [])
        for delta in deltas:
            for token_id, logprobs in zip(delta.token_ids, delta.logprobs, strict=False):
                found.tokens.append(self._token(token_id))
                found.token_logprobs.append(logprobs.logprob)
                found.text_offset.append(self._offset.characters)
                self._offset.pass_by(token_id)
                top = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
                found.top_logprobs.append({self._token(other): logprob for other, logprob in top})
        return found


def finish_word(finished: TurnFinished) -> FinishWord:
    """OpenAI's word for a turn's end. A turn that was aborted has none: its answer is an error."""
    match finished.finish_reason:
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.TOOL_CALLS:
            return "tool_calls"
        case _:
            return "stop"


def _answer_message(deltas: Sequence[TurnDelta], finished: TurnFinished) -> AnswerMessage:
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    calls = [
        AnswerToolCall(id=call.id, function=AnswerFunction(name=call.name, arguments=call.arguments))
        for call in finished.tool_calls
    ]
    malformed = [_malformed(delta) for delta in deltas if isinstance(delta, MalformedCall)]
    return AnswerMessage(
        content=None if calls and not text else text,
        reasoning_content=reasoning or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
        malformed_tool_calls=malformed or msgspec.UNSET,
    )


def _chat_delta(delta: ReasoningDelta | ToolCallStarted | ToolCallArguments | MalformedCall) -> ChatDelta:
    match delta:
        case ReasoningDelta(text=text):
            return ChatDelta(reasoning_content=text)
        case ToolCallStarted(index=index, id=call_id, name=name):
            return ChatDelta(
                tool_calls=[
                    ToolCallDelta(
                        index=index, id=call_id, type="function", function=AnswerFunction(name=name, arguments="")
                    )
                ]
            )
        case ToolCallArguments(index=index, fragment=fragment):
            return ChatDelta(tool_calls=[ToolCallDelta(index=index, function=AnswerFunction(arguments=fragment))])
        case MalformedCall():
            return ChatDelta(malformed_tool_calls=[_malformed(delta)])


def _malformed(call: MalformedCall) -> MalformedToolCall:
    return MalformedToolCall(text=call.text, reason=call.reason)
