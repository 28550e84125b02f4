"""One turn on the engine: tokens out of it; text, reasoning, tool calls and kept tokens out of here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from ...server.engine.messages import FinishReason, SubmitTurn, TokenLogprobs, TurnOutput, TurnUsage
from ...server.text.answer_parser import AnswerParser
from ...server.text.detokenizer import IncrementalDetokenizer
from ...server.text.stop_strings import StopStrings
from ...server.text.tokenizer import Tokenizer
from ...server.text.tool_calls import AnswerPiece, MalformedCall
from ..errors import EngineError, RequestError
from ..messages import Message
from .ports import TurnEngine
from .said import Said
from .turn_events import StopCause, TextDelta, TurnDelta


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn said: the tokens to keep, what they say, and why it ended."""

    token_ids: tuple[int, ...]
    message: Message
    deltas: tuple[TurnDelta, ...]  # the whole answer again, without tokens; empty where it is nothing but text
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    stop_cause: StopCause
    usage: TurnUsage
    reasoning_tokens: int
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """How an answer is read: what parts its text, the special tokens that this needs to see, and where it ends.

    ``one_call``: the turn ends behind its first tool call.
    """

    parser: AnswerParser
    shown_special: Collection[str] = ()
    stop: Sequence[str] = ()
    one_call: bool = False


class TurnRun:
    """Runs one turn once: iterate ``deltas`` to the end, then read ``result``.

    The engine never sees text, so stop strings are found here. A stop string may begin and end inside tokens: the text
    ends before it, the kept tokens include the one that completed it, since that was sampled. What the engine sampled
    beyond that is dropped.
    """

    def __init__(self, engine: TurnEngine, tokenizer: Tokenizer, turn: SubmitTurn, reading: AnswerReading) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._turn = turn
        self._reading = reading
        self._parser = reading.parser
        self._detokenizer = IncrementalDetokenizer(tokenizer, shown_special=reading.shown_special)
        self._stop_strings = StopStrings(reading.stop)
        self._stopped: StopCause | None = None  # by what is said, rather than by the engine
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._said = Said()
        self._reasoning_tokens = 0
        self._result: TurnResult | None = None

    @property
    def turn(self) -> SubmitTurn:
        """What the engine is asked."""
        return self._turn

    @property
    def result(self) -> TurnResult:
        """The finished turn."""
        if self._result is None:
            raise AssertionError("the deltas were not read to the end")
        return self._result

    async def deltas(self) -> AsyncGenerator[TurnDelta, None]:
        """New tokens and what they say, as they come. Closing it aborts the turn.

        Raises:
            EngineError: the engine died, or gave the turn up.
            RequestError: the turn's grammar turned out to be too complex to be followed.
            CapacityError: its queue is full.
        """
        async with aclosing(self._engine.generate(self._turn)) as outputs:
            async for output in outputs:
                for delta in self._absorb(output):
                    yield delta
                if output.finish_reason is not None:
                    self._finish(output)
                    return
                if self._stopped is not None:
                    await self._engine.abort(self._turn.turn_id)
                    self._finish(await _last_output(outputs))
                    return
        raise _no_end()

    def _absorb(self, output: TurnOutput) -> list[TurnDelta]:
        """Take over an output's tokens, up to the one that ends what is said."""
        before = len(self._token_ids)
        pieces: list[AnswerPiece] = []
        for token_id in output.token_ids:
            self._token_ids.append(token_id)
            pieces += self._read([token_id])
            if self._stopped is not None:
                break
        if output.finish_reason is not None and self._stopped is None:
            pieces += self._flush()
        if self._stopped is not None or output.finish_reason is not None:
            pieces += self._parser.finish()
        token_ids = tuple(self._token_ids[before:])
        logprobs = tuple((output.logprobs or [])[: len(token_ids)])
        self._logprobs += logprobs
        self._said.take(pieces)
        return _deltas(pieces, token_ids, logprobs)

    def _read(self, token_ids: Sequence[int]) -> list[AnswerPiece]:
        text, stopped = self._stop_strings.push(self._detokenizer.push(token_ids))
        reasoned = self._parser.in_reasoning
        pieces = self._parser.push(text) if text else []
        if reasoned or self._parser.in_reasoning:
            self._reasoning_tokens += len(token_ids)
        if stopped:
            self._stopped = StopCause.STOP_STRING
        elif self._reading.one_call and self._parser.calls_read:
            self._stopped = StopCause.TOOL_CALL
        return pieces

    def _flush(self) -> list[AnswerPiece]:
        text, stopped = self._stop_strings.push(self._detokenizer.flush())
        if stopped:
            self._stopped = StopCause.STOP_STRING
        else:
            text += self._stop_strings.flush()
        return self._parser.push(text) if text else []

    def _finish(self, last: TurnOutput) -> None:
        if last.finish_reason is FinishReason.FAILED and self._stopped is None:
            raise RequestError(last.error, field="grammar", remedy="send another grammar")
        aborted = last.finish_reason is FinishReason.ABORTED and self._stopped is None
        if last.usage is None or last.finish_reason is None or aborted or not self._token_ids:
            raise _no_end()
        usage = msgspec.structs.replace(last.usage, completion_tokens=len(self._token_ids))
        message = self._said.message
        reason = FinishReason.STOP if self._stopped is not None else last.finish_reason
        self._result = TurnResult(
            token_ids=tuple(self._token_ids),
            message=message,
            deltas=tuple(_deltas(self._said.pieces, (), ())) if self._said.more_than_text else (),
            logprobs=tuple(self._logprobs),
            finish_reason=FinishReason.TOOL_CALLS if message.tool_calls and reason is FinishReason.STOP else reason,
            stop_cause=self._stop_cause(last.finish_reason),
            usage=usage,
            reasoning_tokens=self._reasoning_tokens,
            stop_string=self._stop_strings.matched,
        )

    def _stop_cause(self, finish_reason: FinishReason) -> StopCause:
        if self._stopped is not None:
            return self._stopped
        match finish_reason:
            case FinishReason.LENGTH:
                return StopCause.LENGTH
            case _:
                ended = self._token_ids[-1] in self._tokenizer.eos_token_ids
                return StopCause.END_OF_TURN if ended else StopCause.STOP_TOKEN


def _deltas(
    pieces: Sequence[AnswerPiece], token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
) -> list[TurnDelta]:
    """Pieces in their order; the first is text, which brings the tokens. A malformed call is a note, then text."""
    deltas: list[TurnDelta] = []
    text: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            text.append(piece)
            continue
        if text or token_ids:
            deltas.append(TextDelta(text="".join(text), token_ids=token_ids, logprobs=logprobs))
            text, token_ids, logprobs = [], (), ()
        deltas.append(piece)
        if isinstance(piece, MalformedCall):
            text.append(piece.text)
    if text or token_ids:
        deltas.append(TextDelta(text="".join(text), token_ids=token_ids, logprobs=logprobs))
    return deltas


async def _last_output(outputs: AsyncGenerator[TurnOutput, None]) -> TurnOutput:
    """The output that ends an aborted turn; the tokens on the way to it are not kept."""
    async for output in outputs:
        if output.finish_reason is not None:
            return output
    raise _no_end()


def _no_end() -> EngineError:
    return EngineError("the engine gave the turn up", remedy="send it again", retry_after_s=1.0)
