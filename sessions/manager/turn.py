"""One turn on the engine: tokens out of it, text and kept tokens out of here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from ...server.engine.messages import FinishReason, SubmitTurn, TokenLogprobs, TurnOutput, TurnUsage
from ...server.text.detokenizer import IncrementalDetokenizer
from ...server.text.stop_strings import StopStrings
from ...server.text.tokenizer import Tokenizer
from ..errors import EngineError
from .ports import TurnEngine
from .requests import StopCause, TextDelta


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn said: the tokens to keep, their text without a stop string, and why it ended."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    stop_cause: StopCause
    usage: TurnUsage


class TurnRun:
    """Runs one turn once: iterate ``deltas`` to the end, then read ``result``.

    The engine never sees text, so stop strings are found here. A stop string may begin and end inside tokens: the text
    ends before it, the kept tokens include the one that completed it, since that was sampled. What the engine sampled
    beyond that is dropped.
    """

    def __init__(self, engine: TurnEngine, tokenizer: Tokenizer, turn: SubmitTurn, stop: Sequence[str]) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._turn = turn
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stop_strings = StopStrings(stop)
        self._stopped = False
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._text: list[str] = []
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

    async def deltas(self) -> AsyncGenerator[TextDelta, None]:
        """New tokens and text, as they come. Closing it aborts the turn.

        Raises:
            EngineError: the engine died, or gave the turn up.
            CapacityError: its queue is full.
        """
        async with aclosing(self._engine.generate(self._turn)) as outputs:
            async for output in outputs:
                delta = self._absorb(output)
                if delta.text or delta.token_ids:
                    yield delta
                if output.finish_reason is not None:
                    self._finish(output)
                    return
                if self._stopped:
                    await self._engine.abort(self._turn.turn_id)
                    self._finish(await _last_output(outputs))
                    return
        raise _no_end()

    def _absorb(self, output: TurnOutput) -> TextDelta:
        """Take over an output's tokens, up to the one that completes a stop string."""
        before = len(self._token_ids)
        pieces = []
        for token_id in output.token_ids:
            self._token_ids.append(token_id)
            piece, self._stopped = self._stop_strings.push(self._detokenizer.push([token_id]))
            pieces.append(piece)
            if self._stopped:
                break
        if output.finish_reason is not None and not self._stopped:
            pieces.append(self._flush())
        token_ids = tuple(self._token_ids[before:])
        logprobs = tuple((output.logprobs or [])[: len(token_ids)])
        self._logprobs += logprobs
        text = "".join(pieces)
        self._text.append(text)
        return TextDelta(text=text, token_ids=token_ids, logprobs=logprobs)

    def _flush(self) -> str:
        piece, self._stopped = self._stop_strings.push(self._detokenizer.flush())
        return piece if self._stopped else piece + self._stop_strings.flush()

    def _finish(self, last: TurnOutput) -> None:
        aborted = last.finish_reason is FinishReason.ABORTED and not self._stopped
        if last.usage is None or last.finish_reason is None or aborted or not self._token_ids:
            raise _no_end()
        usage = msgspec.structs.replace(last.usage, completion_tokens=len(self._token_ids))
        self._result = TurnResult(
            token_ids=tuple(self._token_ids),
            text="".join(self._text),
            logprobs=tuple(self._logprobs),
            finish_reason=FinishReason.STOP if self._stopped else last.finish_reason,
            stop_cause=self._stop_cause(last.finish_reason),
            usage=usage,
        )

    def _stop_cause(self, finish_reason: FinishReason) -> StopCause:
        if self._stopped:
            return StopCause.STOP_STRING
        match finish_reason:
            case FinishReason.LENGTH:
                return StopCause.LENGTH
            case _:
                ended = self._token_ids[-1] in self._tokenizer.eos_token_ids
                return StopCause.END_OF_TURN if ended else StopCause.STOP_TOKEN


async def _last_output(outputs: AsyncGenerator[TurnOutput, None]) -> TurnOutput:
    """The output that ends an aborted turn; the tokens on the way to it are not kept."""
    async for output in outputs:
        if output.finish_reason is not None:
            return output
    raise _no_end()


def _no_end() -> EngineError:
    return EngineError("the engine gave the turn up", remedy="send it again", retry_after_s=1.0)
