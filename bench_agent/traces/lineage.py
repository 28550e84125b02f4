"""Requests that each hold their whole conversation, made into turns: which continues and which waits for which."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..workload.plan import Message, MessagesPrompt, Turn
from .messages import answer_tokens


class WholeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was sent. Times are seconds on any clock; None where the trace has none."""

    messages: tuple[Message, ...]
    answer: Message | None = None
    output_tokens: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    agent: str = "main"


def turns_of(requests: Sequence[WholeRequest]) -> tuple[Turn, ...]:
    """One turn a request, in their order.

    A request continues the earlier one whose messages and answer are the longest beginning of its own. It waits for
    that one, and for the latest that had ended when it started; requests that overlapped overlap again.
    """
    turns: list[Turn] = []
    for index, request in enumerate(requests):
        continues = _continued(requests, index)
        prompt = request.messages
        if continues is not None:
            prompt = prompt[len(_conversation(requests[continues])) :]
        after = _awaited(requests, index, continues)
        turns.append(
            Turn(
                prompt=MessagesPrompt(prompt),
                continues=continues,
                after=after,
                gap_s=_gap(requests, index, after),
                output_tokens=request.output_tokens or answer_tokens(request.answer),
                recorded=request.answer,
                agent=request.agent,
            )
        )
    return tuple(turns)


def _conversation(request: WholeRequest) -> tuple[Message, ...]:
    return request.messages if request.answer is None else (*request.messages, request.answer)


def _continued(requests: Sequence[WholeRequest], index: int) -> int | None:
    messages = requests[index].messages
    best, best_length = None, 0
    for earlier in range(index - 1, -1, -1):
        if requests[earlier].answer is None or not _was_over(requests[earlier], requests[index]):
            continue
        before = _conversation(requests[earlier])
        if best_length < len(before) < len(messages) and messages[: len(before)] == before:
            best, best_length = earlier, len(before)
    return best


def _was_over(earlier: WholeRequest, later: WholeRequest) -> bool:
    if earlier.ended_s is None or later.started_s is None:
        return True
    return earlier.ended_s <= later.started_s


def _awaited(requests: Sequence[WholeRequest], index: int, continues: int | None) -> tuple[int, ...]:
    over = [earlier for earlier in range(index) if _was_over(requests[earlier], requests[index])]
    if not over:
        return ()
    latest = max(over, key=lambda earlier: (requests[earlier].ended_s or 0.0, earlier))
    return tuple(sorted({latest} if continues is None else {latest, continues}))


def _gap(requests: Sequence[WholeRequest], index: int, after: tuple[int, ...]) -> float:
    started = requests[index].started_s
    ends = [end for earlier in after if (end := requests[earlier].ended_s) is not None]
    if started is None or not ends:
        return 0.0
    return round(max(0.0, started - max(ends)), 6)
