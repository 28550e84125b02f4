"""How much of a log other sessions have too."""

from __future__ import annotations

from ..session import SessionLog
from ..store import SessionStore

MAX_SHARERS = 64  # looked at one by one; with more of them everything counts as shared


async def tokens_shared(store: SessionStore, session_id: str, log: SessionLog, kept: int) -> int:
    """How many of the log's first tokens the session itself (``kept``) or another open session still has."""
    dropped = [part for part in log.parts if part.end > kept]
    if not dropped:
        return log.num_tokens
    sharers = await store.sessions_through(dropped[0].entry.entry_id, but=session_id, limit=MAX_SHARERS + 1)
    if len(sharers) > MAX_SHARERS:
        return log.num_tokens
    most = kept
    for sharer in sharers:
        most = max(most, _common_tokens(log, await store.log(sharer.place)))
    return most


def _common_tokens(left: SessionLog, right: SessionLog) -> int:
    """Tokens up to which two paths go through the same entries."""
    common = 0
    for mine, theirs in zip(left.parts, right.parts, strict=False):
        if mine.entry.entry_id != theirs.entry.entry_id:
            break
        common = mine.entry.start + min(mine.used, theirs.used)
        if mine.used != theirs.used:
            break
    return common
