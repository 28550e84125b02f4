"""The session database: what is read and changed of sessions, by one thread at a time."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from ..errors import CapacityError, StoreError
from ..keeping import NOTHING_SAID, Keeping
from ..session import Head, LogPart, Place, Session, SessionLog, SessionState, tokens_in, turns_in
from . import conversations, log_rows, pruning, rows, tool_latencies
from .change import Change, DuplicateRequest, KeepingChange
from .conversations import StoredConversation, StoredResponse
from .rows import StoredAnswer
from .store_file import StoreFile
from .tool_latencies import StoredLatency

logger = logging.getLogger(__name__)

# Open sessions whose log goes through an entry.
_SESSIONS_THROUGH = """
WITH RECURSIVE after(id) AS (
    SELECT ?
    UNION
    SELECT entries.entry_id FROM after JOIN entries ON entries.parent_id = after.id
)
SELECT sessions.* FROM after JOIN sessions ON sessions.head_id = after.id
WHERE sessions.state = ? AND sessions.session_id != ? LIMIT ?
"""


# How many sessions a tenant opened itself and has not closed; counted no further than a limit.
_OPENED = """
SELECT count(*) FROM (
    SELECT 1 FROM sessions WHERE tenant = ? AND state = ?
    AND NOT EXISTS (SELECT 1 FROM inferred_sessions WHERE inferred_sessions.session_id = sessions.session_id)
    LIMIT ?
)
"""
_SESSION_RETRY_S = 30.0  # when its owner closes a session is not known


class SessionDatabase:
    """Reads and changes of sessions in ``file``. Every method raises StoreError when the file fails it."""

    def __init__(self, path: Path) -> None:
        self.file = StoreFile(path)
        self._database = self.file.tables

    def close(self) -> None:
        self.file.close()

    def apply_all(self, changes: Sequence[Change]) -> list[Session | Exception]:
        """Make changes durable with one write to the disk, each of them wholly or not at all.

        Returns for each the session as it stands afterwards, or why it was not made: DuplicateRequest if its request id
        has an answer already, CapacityError if its tenant has as many sessions as it may, StoreError.
        """
        if len(changes) > 1:
            try:
                with self.file.transaction():
                    return [self._outcome(change, self._database.atomic(), sqlite3.Error) for change in changes]
            except StoreError as error:
                logger.debug("changes are written one by one: %s", error)  # of one of them, or of the disk
        return [self._outcome(change, self.file.transaction(), ()) for change in changes]

    def _outcome(
        self,
        change: Change,
        transaction: AbstractContextManager[object],
        of_all: type[Exception] | tuple[()],
    ) -> Session | Exception:
        """The session, or what went wrong with this change; errors ``of_all`` changes are raised."""
        try:
            with transaction:
                return self._apply(change)
        except of_all:
            raise
        except Exception as error:  # noqa: BLE001 - raised to the one who asked for this change
            return error

    def _apply(self, change: Change) -> Session:
        if change.answer is not None:
            self._insert_answer(change.answer)
        place = self._insert_entries(change) if change.entries else change.session.place
        session = msgspec.structs.replace(change.session, place=place)
        row = rows.session_row(session)
        for key in change.conversation_keys:
            self._write_conversation(session, key)
        if change.base_version == 0:
            if change.most_open:
                self._require_room_for_session(session.tenant, change.most_open)
            self._write_origin(change)
            self._database.table("sessions").insert(row)
            self._write_keeping(session.session_id, NOTHING_SAID, session.keeping)
            return session
        self._replace_session(row, change.base_version)
        return msgspec.structs.replace(session, keeping=self._keep(session.session_id, change.keep))

    def _require_room_for_session(self, tenant: str, most: int) -> None:
        """Conversations of clients that know no session do not count: they are forgotten by their age."""
        parameters = [tenant, SessionState.OPEN.value, most]
        (open_now,) = self._database.execute(_OPENED, parameters).fetchone()
        if open_now >= most:
            raise CapacityError(
                f"this tenant has {open_now} open sessions, and may have {most}",
                field="tenant",
                remedy="close one, then try again",
                retry_after_s=_SESSION_RETRY_S,
            )

    def _insert_answer(self, answer: StoredAnswer) -> None:
        if self.answer(answer.scope, answer.request_id) is not None:
            raise DuplicateRequest(answer.request_id)
        self._database.table("answers").insert(rows.answer_row(answer))

    def _insert_entries(self, change: Change) -> Place:
        before = self._base_place(change)
        self._require_entry(before)
        (last_id,) = self._database.execute("SELECT coalesce(max(entry_id), 0) FROM entries").fetchone()
        new_rows = []
        for entry_id, entry in enumerate(change.entries, last_id + 1):
            row = rows.entry_row(entry_id, entry, before)
            new_rows.append(row)
            head = Head(entry_id, len(entry.token_ids))
            before = Place(head, before.num_tokens + head.used, row["turn"])
        self._database.table("entries").insert_all(new_rows)
        accounts = [
            rows.account_row(row["entry_id"], entry.account)
            for row, entry in zip(new_rows, change.entries, strict=True)
            if entry.account
        ]
        if accounts:
            self._database.table("accounts").insert_all(accounts)
        return before

    def _require_entry(self, place: Place) -> None:
        if (
            place.head is not None
            and not self._database.execute("SELECT 1 FROM entries WHERE entry_id = ?", [place.head.entry_id]).fetchone()
        ):
            raise StoreError("what was to be continued has been forgotten meanwhile", remedy="send it again")

    def _write_origin(self, change: Change) -> None:
        """For whom a new session was made, of one that a stateless client does not know."""
        session = change.session
        if change.inferred:
            conversations.write_inferred(self._database, session.session_id)
            if change.client:
                conversations.write_client(self._database, session.session_id, session.tenant, change.client)

    def _write_conversation(self, session: Session, key: bytes) -> None:
        conversations.write_conversation(
            self._database,
            StoredConversation(
                tenant=session.tenant,
                key=key,
                session_id=session.session_id,
                place=session.place,
                used_at=session.updated_at,
            ),
        )

    def _base_place(self, change: Change) -> Place:
        """Where the new entries attach: the new place less what they add."""
        if any(not entry.token_ids for entry in change.entries):
            raise AssertionError("an entry has at least one token")
        after = change.session.place
        entries = change.entries
        return Place(after.head, after.num_tokens - tokens_in(entries), after.num_turns - turns_in(entries))

    def _replace_session(self, row: rows.Row, base_version: int) -> None:
        session_id = row["session_id"]
        current = self.session(session_id)
        if current is None or current.version != base_version:
            raise StoreError(
                f"session {session_id} was changed by another program",
                remedy="let only one server use a data folder",
            )
        self._database.table("sessions").update(session_id, row)

    def keep(self, session_id: str, change: KeepingChange, answer: StoredAnswer | None) -> Keeping:
        """Change how a session is kept, and nothing else of it; returns what holds afterwards.

        Raises:
            DuplicateRequest: the request id of ``answer`` has one already; nothing was changed.
        """
        with self.file.transaction():
            if answer is not None:
                self._insert_answer(answer)
            return self._keep(session_id, change)

    def _keep(self, session_id: str, change: KeepingChange | None) -> Keeping:
        before = self._keepings([session_id]).get(session_id, NOTHING_SAID)
        after = before if change is None else change(before)
        self._write_keeping(session_id, before, after)
        return after

    def _write_keeping(self, session_id: str, before: Keeping, after: Keeping) -> None:
        if after != before:
            self._database.table("keepings").upsert(rows.keeping_row(session_id, after), pk="session_id")

    def _keepings(self, session_ids: Sequence[str]) -> dict[str, Keeping]:
        """Of each session about which anything was said."""
        marks = ", ".join("?" * len(session_ids))
        found = self._database.table("keepings").rows_where(f"session_id IN ({marks})", list(session_ids))
        return {row["session_id"]: rows.keeping_from(row) for row in found}

    def session(self, session_id: str) -> Session | None:
        """A session in any state."""
        with self.file.errors():
            found = rows.first(self._database.table("sessions").rows_where("session_id = ?", [session_id]))
            return None if found is None else self._sessions([found])[0]

    def _sessions(self, found: Sequence[rows.Row]) -> list[Session]:
        keepings = self._keepings([row["session_id"] for row in found])
        return [rows.session_from(row, keepings.get(row["session_id"], NOTHING_SAID)) for row in found]

    def sessions_through(self, entry_id: int, *, but: str, limit: int) -> list[Session]:
        """Open sessions but one whose log goes through that entry, or one behind it; at most ``limit``."""
        with self.file.errors():
            parameters = [entry_id, SessionState.OPEN.value, but, limit]
            return [rows.session_from(row) for row in self._database.query(_SESSIONS_THROUGH, parameters)]

    def sessions(self, tenant: str, *, after: str, limit: int) -> list[Session]:
        """Open sessions of a tenant in the order of their ids, behind the id ``after``."""
        with self.file.errors():
            found = self._database.table("sessions").rows_where(
                "tenant = ? AND state = ? AND session_id > ?",
                [tenant, SessionState.OPEN.value, after],
                order_by="session_id",
                limit=limit,
            )
            return self._sessions(list(found))

    def log(self, place: Place) -> SessionLog:
        """The entries from the start to ``place``."""
        with self.file.errors():
            return log_rows.log(self._database, place)

    def last_parts(self, place: Place, count: int) -> tuple[LogPart, ...]:
        """The last entries up to ``place``, oldest first; at most ``count``."""
        with self.file.errors():
            return log_rows.last_parts(self._database, place, count)

    def accounts(self, place: Place) -> dict[int, bytes]:
        """What is remembered of the entries up to ``place``, by their ids, where anything is."""
        with self.file.errors():
            return log_rows.accounts(self._database, place)

    def answer(self, scope: str, request_id: str) -> StoredAnswer | None:
        """The stored answer of a request."""
        with self.file.errors():
            where = "scope = ? AND request_id = ?"
            found = rows.first(self._database.table("answers").rows_where(where, [scope, request_id]))
        return None if found is None else rows.answer_from(found)

    def find_conversation(self, tenant: str, keys: Sequence[bytes]) -> tuple[int, StoredConversation] | None:
        """The last of ``keys`` that is remembered: its index, and where that conversation ends."""
        with self.file.errors():
            return conversations.find_conversation(self._database, tenant, keys)

    def client_of(self, session_id: str) -> str:
        """The client that a session was made for; empty if it did not name itself."""
        with self.file.errors():
            return conversations.client_of(self._database, session_id)

    def latest_of_client(self, tenant: str, client: str) -> str | None:
        """The session that was made for a client and used last."""
        with self.file.errors():
            return conversations.latest_of_client(self._database, tenant, client)

    def write_response(self, response: StoredResponse) -> None:
        """Keep a response; its id is new."""
        with self.file.transaction():
            conversations.write_response(self._database, response)

    def find_response(self, tenant: str, response_id: str) -> StoredResponse | None:
        """A response of this tenant."""
        with self.file.errors():
            return conversations.find_response(self._database, tenant, response_id)

    def delete_response(self, tenant: str, response_id: str) -> bool:
        """Forget a response; whether there was one."""
        with self.file.transaction():
            return conversations.delete_response(self._database, tenant, response_id)

    def write_tool_latencies(self, latencies: Sequence[StoredLatency]) -> None:
        """Keep how long tools took, in the place of what was kept of the same ones."""
        with self.file.transaction():
            tool_latencies.write(self._database, latencies)

    def tool_latencies(self) -> list[StoredLatency]:
        """How long tools took, the one that was used longest ago first."""
        with self.file.errors():
            return tool_latencies.read(self._database)

    def prune(self, before: float, now: float) -> int:
        """Forget sessions closed, answers given and conversations used before that time, responses whose time is over
        ``now``, latencies beyond their bound, and all entries that nothing reaches.

        Returns the number of entries deleted.
        """
        with self.file.transaction():
            return pruning.prune(self._database, before, now)
