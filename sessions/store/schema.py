"""The tables of the session store, and how older files become this version's.

``sessions``, ``keepings`` and ``answers`` are small and change; ``entries`` holds the tokens and is only ever added to.
A migration is never edited after a release: a new one follows it.
"""

from __future__ import annotations

from contextlib import closing

from sqlite_utils import Database

from . import tool_latencies
from .conversations import create_client_table, create_tables
from .migrations import apply_steps
from .rows import damaged


def _m001_sessions_and_entries(database: Database) -> None:
    """Sessions, the tree of entries, and the answers given to request ids."""
    database.table("entries").create(
        {
            "entry_id": int,
            "parent_id": int,  # null: the first of a path
            "parent_used": int,
            "kind": int,
            "start": int,
            "turn": int,
            "token_ids": bytes,  # little-endian int32
            "messages": bytes,  # JSON
            "checksum": int,
        },
        pk="entry_id",
        not_null={"kind", "start", "turn", "token_ids", "messages", "checksum"},
        strict=True,
    )
    database.table("sessions").create(
        {
            "session_id": str,
            "tenant": str,
            "version": int,
            "state": str,
            "head_id": int,  # null: the log is empty
            "head_used": int,
            "num_tokens": int,
            "num_turns": int,
            "model": str,
            "model_fingerprint": str,
            "tokenizer_fingerprint": str,
            "system": str,
            "tools": bytes,  # JSON
            "parent_session_id": str,
            "created_at": float,
            "updated_at": float,
            "checksum": int,
        },
        pk="session_id",
        not_null={"tenant", "version", "state", "num_tokens", "num_turns", "model", "tools", "checksum"},
        strict=True,
    )
    database.table("sessions").create_index(["tenant", "state", "session_id"], index_name="sessions_by_tenant")
    database.table("answers").create(
        {
            "scope": str,  # the session that a request changed, or the tenant that opened one
            "request_id": str,
            "request_digest": bytes,
            "answer": bytes,
            "created_at": float,
            "checksum": int,
        },
        pk=("scope", "request_id"),
        not_null={"request_digest", "answer", "created_at", "checksum"},
        strict=True,
    )
    database.table("answers").create_index(["created_at"], index_name="answers_by_age")


def _m002_keepings(database: Database) -> None:
    """How sessions are kept (their policy and hints), and the ways from an entry to what follows it."""
    database.table("keepings").create(
        {
            "session_id": str,
            "keeping": bytes,  # JSON
            "checksum": int,
        },
        pk="session_id",
        not_null={"keeping", "checksum"},
        strict=True,
    )
    database.table("entries").create_index(["parent_id"], index_name="entries_by_parent")
    database.table("sessions").create_index(["head_id"], index_name="sessions_by_head")


def _m003_conversations(database: Database) -> None:
    """Conversations that clients send whole, and the responses of the Responses API."""
    create_tables(database)


def _m004_accounts(database: Database) -> None:
    """What is remembered of how entries came to be."""
    database.table("accounts").create(
        {
            "entry_id": int,
            "account": bytes,
            "checksum": int,
        },
        pk="entry_id",
        not_null={"account", "checksum"},
        strict=True,
    )


def _m005_clients(database: Database) -> None:
    """For whom sessions of stateless clients were made."""
    create_client_table(database)


def _m006_tool_latencies(database: Database) -> None:
    """How long tools took."""
    tool_latencies.create_table(database)


_STEPS = (
    ("m001_sessions_and_entries", _m001_sessions_and_entries),
    ("m002_keepings", _m002_keepings),
    ("m003_conversations", _m003_conversations),
    ("m004_accounts", _m004_accounts),
    ("m005_clients", _m005_clients),
    ("m006_tool_latencies", _m006_tool_latencies),
)
SCHEMA_VERSION = len(_STEPS)


def migrate(database: Database) -> None:
    """Bring the tables to this version, each step in a transaction of its own.

    Raises:
        StoreError: the file was written by a newer version, or its tables are not those that the steps make.
    """
    _apply(database)
    with closing(Database(memory=True, execute_plugins=False)) as fresh:
        _apply(fresh)
        expected = _definitions(fresh)
    if _definitions(database) != expected or not _has_distinct_roots(database):
        raise damaged("its tables are not what they should be")


def _apply(database: Database) -> None:
    apply_steps(database, "sessile.sessions", _STEPS, "the session store", damaged)


def _definitions(database: Database) -> list[str]:
    found = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")
    return sorted(repr(row) for row in found.fetchall())


def _has_distinct_roots(database: Database) -> bool:
    """Whether every table and index has pages of its own: one that shows another's would look empty."""
    roots = [row[0] for row in database.execute("SELECT rootpage FROM sqlite_schema")]
    return len(set(roots)) == len(roots)
