"""What is forgotten in time, and what nothing reaches any more after that."""

from __future__ import annotations

from sqlite_utils import Database

from ..session import SessionState
from . import conversations, tool_latencies

_UNREACHABLE = """
entry_id NOT IN (
    WITH RECURSIVE live(id) AS (
        SELECT head_id FROM sessions WHERE head_id IS NOT NULL
        UNION
        SELECT head_id FROM conversations
        UNION
        SELECT head_id FROM responses
        UNION
        SELECT entries.parent_id FROM live JOIN entries ON entries.entry_id = live.id
        WHERE entries.parent_id IS NOT NULL
    )
    SELECT id FROM live
)
"""


def prune(database: Database, before: float, now: float) -> int:
    """Forget sessions closed, answers given and conversations used before that time, responses whose time is over
    ``now``, latencies beyond their bound, and all entries that nothing reaches; inside a transaction.

    Returns the number of entries deleted.
    """
    closed = "state = ? AND updated_at < ?"
    parameters = [SessionState.CLOSED.value, before]
    database.execute(
        f"DELETE FROM answers WHERE scope IN (SELECT session_id FROM sessions WHERE {closed})",  # noqa: S608
        parameters,
    )
    database.execute(
        f"DELETE FROM keepings WHERE session_id IN (SELECT session_id FROM sessions WHERE {closed})",  # noqa: S608
        parameters,
    )
    database.table("sessions").delete_where(closed, parameters)
    database.table("answers").delete_where("created_at < ?", [before])
    conversations.prune(database, before, now)
    tool_latencies.prune(database)
    deleted = database.execute(f"DELETE FROM entries WHERE {_UNREACHABLE}")  # noqa: S608
    database.execute("DELETE FROM accounts WHERE entry_id NOT IN (SELECT entry_id FROM entries)")
    return int(deleted.rowcount)
