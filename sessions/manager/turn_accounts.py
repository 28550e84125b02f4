"""What is remembered of each turn beside its tokens: what it cost, and why."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...server.engine.messages import FinishReason, TurnUsage
from ..session import EntryKind, SessionLog
from .turn_events import Miss, TurnFinished, TurnSummary


class TurnAccount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored with the answer of a turn. Times are seconds since the epoch."""

    finished_at: float
    finish_reason: FinishReason
    usage: TurnUsage
    miss: Miss | None = None


_DECODER = msgspec.msgpack.Decoder(TurnAccount)


def account_of(finished: TurnFinished, now: float) -> bytes:
    """What is to be stored of a turn."""
    account = TurnAccount(
        finished_at=now, finish_reason=finished.finish_reason, usage=finished.usage, miss=finished.miss
    )
    return msgspec.msgpack.encode(account)


def turns_of(log: SessionLog, accounts: Mapping[int, bytes]) -> tuple[TurnSummary, ...]:
    """The finished turns of a log, oldest first; ``accounts`` are those of its entries."""
    turns, before = [], 0
    for part in log.parts:
        if part.entry.kind is not EntryKind.OUTPUT or not part.whole:
            continue
        stored = accounts.get(part.entry.entry_id)
        account = None if stored is None else _DECODER.decode(stored)
        turns.append(
            TurnSummary(
                turn=part.turns_finished,
                input_tokens=part.entry.start - before,
                output_tokens=part.used,
                num_tokens=part.end,
                finished_at=None if account is None else account.finished_at,
                usage=None if account is None else account.usage,
                finish_reason=None if account is None else account.finish_reason,
                miss=None if account is None else account.miss,
            )
        )
        before = part.end
    return tuple(turns)
