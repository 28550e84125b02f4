"""Which session holds a conversation that clients send whole, and the responses of the Responses API.

Both point at places in sessions' logs, and keep the entries there from being forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from sqlite_utils import Database

from ..session import Head, Place
from .rows import Row, first, opened, sealed

_KEYS_AT_ONCE = 500


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, named by ``key``, ends at ``place`` of a session."""

    tenant: str
    key: bytes
    session_id: str
    place: Place
    used_at: float


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the Responses API. ``body`` is what its owner wrote; ``key`` names the conversation it ends."""

    tenant: str
    response_id: str
    session_id: str
    place: Place
    key: bytes
    body: bytes
    created_at: float
    expires_at: float


def create_tables(database: Database) -> None:
    """The tables, empty."""
    place = {"session_id": str, "head_id": int, "head_used": int, "num_tokens": int, "num_turns": int}
    database.table("conversations").create(
        {"tenant": str, "key": bytes, **place, "used_at": float, "checksum": int},
        pk=("tenant", "key"),
        not_null={*place, "used_at", "checksum"},
        strict=True,
    )
    database.table("responses").create(
        {
            "tenant": str,
            "response_id": str,
            **place,
            "key": bytes,
            "body": bytes,
            "created_at": float,
            "expires_at": float,
            "checksum": int,
        },
        pk=("tenant", "response_id"),
        not_null={*place, "key", "body", "created_at", "expires_at", "checksum"},
        strict=True,
    )
    database.table("inferred_sessions").create({"session_id": str}, pk="session_id", strict=True)
    database.table("conversations").create_index(["used_at"], index_name="conversations_by_age")
    database.table("responses").create_index(["expires_at"], index_name="responses_by_end")
    database.table("responses").create_index(["session_id"], index_name="responses_by_session")


def create_client_table(database: Database) -> None:
    """Which client, by its own name for itself, each session of a stateless client was made for."""
    database.table("session_clients").create(
        {"session_id": str, "tenant": str, "client": str, "checksum": int},
        pk="session_id",
        not_null={"tenant", "client", "checksum"},
        strict=True,
    )
    database.table("session_clients").create_index(["tenant", "client"], index_name="sessions_by_client")


def write_client(database: Database, session_id: str, tenant: str, client: str) -> None:
    """Remember for which client a session was made."""
    row = sealed({"session_id": session_id, "tenant": tenant, "client": client})
    database.table("session_clients").insert(row)


def client_of(database: Database, session_id: str) -> str:
    """The client that a session was made for; empty if it did not name itself."""
    found = first(database.table("session_clients").rows_where("session_id = ?", [session_id]))
    return "" if found is None else str(opened(found, f"the client of session {session_id}")["client"])


def latest_of_client(database: Database, tenant: str, client: str) -> str | None:
    """The session that was made for a client and used last."""
    query = """
        SELECT session_clients.session_id FROM session_clients JOIN sessions USING (session_id)
        WHERE session_clients.tenant = ? AND client = ? ORDER BY sessions.updated_at DESC LIMIT 1
    """
    found = first(database.query(query, [tenant, client]))
    return None if found is None else str(found["session_id"])


def write_conversation(database: Database, conversation: StoredConversation) -> None:
    """Remember where a conversation ends; the last one of equal ones counts."""
    database.table("conversations").insert(_row(conversation), replace=True)


def write_inferred(database: Database, session_id: str) -> None:
    """Remember that a session was made for a client that does not know it, so that it is forgotten when not used."""
    database.table("inferred_sessions").insert({"session_id": session_id}, ignore=True)


def find_conversation(database: Database, tenant: str, keys: Sequence[bytes]) -> tuple[int, StoredConversation] | None:
    """The last of ``keys`` that is remembered: its index, and where it ends."""
    for start in range(max(0, len(keys) - _KEYS_AT_ONCE), -_KEYS_AT_ONCE, -_KEYS_AT_ONCE):
        some = keys[max(0, start) : start + _KEYS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        where = f"tenant = ? AND key IN ({marks})"
        found = {bytes(row["key"]): row for row in database.table("conversations").rows_where(where, [tenant, *some])}
        for index in range(len(some) - 1, -1, -1):
            if some[index] in found:
                row = opened(found[some[index]], "a conversation")
                return max(0, start) + index, StoredConversation(**_with_place(row))
    return None


def write_response(database: Database, response: StoredResponse) -> None:
    """Keep a response; its id is new."""
    database.table("responses").insert(_row(response))


def find_response(database: Database, tenant: str, response_id: str) -> StoredResponse | None:
    """A response of this tenant."""
    where = "tenant = ? AND response_id = ?"
    found = first(database.table("responses").rows_where(where, [tenant, response_id]))
    return None if found is None else StoredResponse(**_with_place(opened(found, f"response {response_id}")))


def delete_response(database: Database, tenant: str, response_id: str) -> bool:
    """Forget a response; whether there was one."""
    found = find_response(database, tenant, response_id) is not None
    database.table("responses").delete_where("tenant = ? AND response_id = ?", [tenant, response_id])
    return found


def prune(database: Database, before: float, now: float) -> None:
    """Forget conversations not used since ``before``, their sessions, and responses whose time was over by ``now``."""
    database.table("conversations").delete_where("used_at < ?", [before])
    database.table("responses").delete_where("expires_at < ?", [now])
    for session_id in list(_unused_sessions(database, before)):
        for table in ("keepings", "sessions", "session_clients", "inferred_sessions"):
            database.table(table).delete_where("session_id = ?", [session_id])
        database.table("answers").delete_where("scope = ?", [session_id])


def _unused_sessions(database: Database, before: float) -> Iterator[str]:
    query = """
        SELECT session_id FROM inferred_sessions
        WHERE session_id NOT IN (SELECT session_id FROM responses)
        AND session_id NOT IN (SELECT session_id FROM sessions WHERE updated_at >= ?)
    """
    for row in database.query(query, [before]):
        yield row["session_id"]


def _row(stored: StoredConversation | StoredResponse) -> Row:
    row = {name: getattr(stored, name) for name in stored.__struct_fields__ if name != "place"}
    head = stored.place.head
    if head is None:
        raise AssertionError("a conversation has tokens")
    place = {
        "head_id": head.entry_id,
        "head_used": head.used,
        "num_tokens": stored.place.num_tokens,
        "num_turns": stored.place.num_turns,
    }
    return sealed(row | place)


def _with_place(row: Row) -> Row:
    head = Head(row.pop("head_id"), row.pop("head_used"))
    return row | {"place": Place(head, row.pop("num_tokens"), row.pop("num_turns"))}
