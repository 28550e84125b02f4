"""How long tools took, kept over restarts: one row a tenant and tool."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from sqlite_utils import Database

from ..errors import StoreError
from .rows import opened, sealed

logger = logging.getLogger(__name__)

MOST_ROWS = 20_000  # those used longest ago are forgotten first


class StoredLatency(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of ``tool``; ``sketch`` is what its owner wrote. ``used_at``: seconds since the epoch."""

    tenant: str
    tool: str
    sketch: bytes
    used_at: float


def create_table(database: Database) -> None:
    """The table, empty."""
    database.table("tool_latencies").create(
        {"tenant": str, "tool": str, "sketch": bytes, "used_at": float, "checksum": int},
        pk=("tenant", "tool"),
        not_null={"sketch", "used_at", "checksum"},
        strict=True,
    )
    database.table("tool_latencies").create_index(["used_at"], index_name="tool_latencies_by_age")


def write(database: Database, latencies: Sequence[StoredLatency]) -> None:
    """Keep ``latencies`` in the place of what was kept of the same tools."""
    new = [sealed(msgspec.structs.asdict(each)) for each in latencies]
    database.table("tool_latencies").insert_all(new, replace=True)


def read(database: Database) -> list[StoredLatency]:
    """What is kept, the tool that was used longest ago first. A damaged row is left out: it will be learnt again."""
    found: list[StoredLatency] = []
    for row in database.table("tool_latencies").rows_where(order_by="used_at DESC", limit=MOST_ROWS):
        try:
            found.append(StoredLatency(**opened(row, f"the latency of {row['tool']}")))
        except StoreError as error:
            logger.warning("%s; it is learnt again", error.message)
    return found[::-1]


def prune(database: Database) -> None:
    """Forget those used longest ago, beyond the bound."""
    database.execute(
        "DELETE FROM tool_latencies WHERE rowid IN "
        "(SELECT rowid FROM tool_latencies ORDER BY used_at DESC LIMIT -1 OFFSET ?)",
        [MOST_ROWS],
    )
