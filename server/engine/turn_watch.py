"""Turns, watched: their tokens are timed on the way to whoever asked for them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from .messages import AdmittedTurn, SubmitTurn, TurnOutput, TurnUsage


class TurnListener(Protocol):
    """Who hears how turns go. It neither raises nor waits."""

    def turn_started(self, turn: SubmitTurn) -> None: ...

    def turn_admitted(self, admitted: AdmittedTurn) -> None:
        """The engine has counted a turn's prompt. Comes once, before the turn's first tokens, or not at all."""
        ...

    def tokens_came(self, turn: SubmitTurn, seconds: float, count: int, *, first: bool) -> None:
        """``seconds`` after the turn's start, if these are the first, else after those before."""
        ...

    def turn_ended(self, turn: SubmitTurn, watch: TurnWatch) -> None: ...


class TurnWatch:
    """The clock of one turn, and what came out of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._last = self._started
        self.ttft_s: float | None = None
        self.output_token_ids: list[int] = []
        self.outcome = "error"
        self.usage: TurnUsage | None = None

    @property
    def duration_s(self) -> float:
        return self._clock() - self._started

    def absorb(self, output: TurnOutput) -> tuple[float, int, bool]:
        """Take an output; returns seconds, tokens, and whether these are the first."""
        now = self._clock()
        seconds, first = now - self._last, self.ttft_s is None
        if output.token_ids:
            self._last = now
            self.ttft_s = seconds if first else self.ttft_s
            self.output_token_ids += output.token_ids
        if output.finish_reason is not None:
            self.outcome, self.usage = output.finish_reason.value, output.usage
        return seconds, len(output.token_ids), first


async def observed(
    run: Callable[[SubmitTurn], AsyncGenerator[TurnOutput, None]],
    turn: SubmitTurn,
    listener: TurnListener,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[TurnOutput, None]:
    """Run ``turn`` and hand on what it says. One whose iterator is closed early ended as ``cancelled``."""
    watch = TurnWatch(clock)
    listener.turn_started(turn)
    try:
        async with aclosing(run(turn)) as outputs:
            async for output in outputs:
                seconds, count, first = watch.absorb(output)
                if count:
                    listener.tokens_came(turn, seconds, count, first=first)
                yield output
    except GeneratorExit:
        watch.outcome = watch.outcome if watch.usage is not None else "cancelled"
        raise
    finally:
        listener.turn_ended(turn, watch)
