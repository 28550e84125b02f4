"""The session store for asyncio: a thread that writes, a thread that reads, and the lock on the data folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

from ..errors import StoreError
from ..keeping import Keeping
from ..session import LogPart, Place, Session, SessionLog
from .change import Change, KeepingChange
from .conversations import StoredConversation, StoredResponse
from .files import DATABASE_NAME, create_database
from .lock import DataFolderLock
from .moves import finish_moves
from .rows import StoredAnswer
from .threads import DatabaseThread, GroupCommit, log_failure, to_the_end
from .tool_latencies import StoredLatency


class SessionStore:
    """Sessions on disk, under ``folder``: ``sessions.db`` (SQLite, write-ahead log, every commit synced) and a lock.

    What a method has returned survives the end of the process and of the machine. All methods raise StoreError when
    the file or the disk fails; an answer is then never given, so that nothing acknowledged can be lost.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create. Blocks for as long as a check of the file takes.

        Raises:
            StoreError: the folder cannot be written or is in use, or the file is damaged or of a newer version.
        """
        self.folder = folder
        path = folder / DATABASE_NAME
        with ExitStack() as opened:
            opened.callback(DataFolderLock(folder).release)
            finish_moves(folder)
            try:
                create_database(path)
            except OSError as error:
                raise StoreError(
                    f"the session store {path} cannot be made: {error.strerror}",
                    remedy="make the data folder writable for this user, or name another one with --data-dir",
                ) from error
            self._writer = opened.enter_context(closing(DatabaseThread(path, "sessile-store-writer")))
            self._writer.database.file.prepare()
            self._reader = opened.enter_context(closing(DatabaseThread(path, "sessile-store-reader")))
            self._reader.database.file.forbid_writes()
            self._changes = GroupCommit(self._writer)
            self._opened = opened.pop_all()
        self._closed = False

    @property
    def failure(self) -> StoreError | None:
        """Why no change can be made now; None: changes are taken. Asking also finds out when they are again."""
        health = self._writer.database.file.health
        if health.is_probe_due() and not self._closed:
            self._writer.submit(lambda database: database.file.probe())
        return health.failure

    def require_writable(self) -> None:
        """Raise at once what a change would raise at its end: StoreUnavailable, or StoreError for a damaged file."""
        failure = self.failure
        if failure is not None:
            raise failure

    async def apply(self, change: Change) -> Session:
        """Make a change durable, all of it or nothing; returns the session as it stands afterwards.

        Raises:
            DuplicateRequest: its request id has an answer already; nothing was changed.
            CapacityError: its tenant has as many open sessions as it may; nothing was changed.
        """
        return await to_the_end(self._changes.submit(change))

    async def keep(self, session_id: str, change: KeepingChange, answer: StoredAnswer | None = None) -> Keeping:
        """Make a change of how a session is kept durable; returns what holds afterwards.

        ``change`` gets what holds when its turn comes, on the writer's thread.

        Raises:
            DuplicateRequest: the request id of ``answer`` has one already; nothing was changed.
        """
        return await to_the_end(self._writer.submit(lambda database: database.keep(session_id, change, answer)))

    async def sessions_through(self, entry_id: int, *, but: str, limit: int) -> list[Session]:
        """Open sessions but one whose log goes through that entry, or one behind it; at most ``limit``."""
        return await asyncio.wrap_future(
            self._reader.submit(lambda database: database.sessions_through(entry_id, but=but, limit=limit))
        )

    async def session(self, session_id: str) -> Session | None:
        """A session in any state; None if there is none of that id."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.session(session_id)))

    async def sessions(self, tenant: str, *, after: str = "", limit: int) -> list[Session]:
        """Open sessions of a tenant in the order of their ids, behind the id ``after``."""
        return await asyncio.wrap_future(
            self._reader.submit(lambda database: database.sessions(tenant, after=after, limit=limit))
        )

    async def log(self, place: Place) -> SessionLog:
        """The entries from the start to ``place``."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.log(place)))

    async def last_parts(self, place: Place, count: int) -> tuple[LogPart, ...]:
        """The last entries up to ``place``, oldest first; at most ``count``."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.last_parts(place, count)))

    async def accounts(self, place: Place) -> dict[int, bytes]:
        """What is remembered of the entries up to ``place``, by their ids, where anything is."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.accounts(place)))

    async def answer(self, scope: str, request_id: str) -> StoredAnswer | None:
        """The stored answer of a request."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.answer(scope, request_id)))

    async def conversation(self, tenant: str, keys: Sequence[bytes]) -> tuple[int, StoredConversation] | None:
        """The last of ``keys`` that names a conversation which is kept: its index, and where it ends."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.find_conversation(tenant, keys)))

    async def client_of(self, session_id: str) -> str:
        """The client that a session was made for; empty if it did not name itself."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.client_of(session_id)))

    async def latest_of_client(self, tenant: str, client: str) -> str | None:
        """The session that was made for a client and used last."""
        return await asyncio.wrap_future(
            self._reader.submit(lambda database: database.latest_of_client(tenant, client))
        )

    async def add_response(self, response: StoredResponse) -> None:
        """Keep a response of the Responses API."""
        await to_the_end(self._writer.submit(lambda database: database.write_response(response)))

    async def response(self, tenant: str, response_id: str) -> StoredResponse | None:
        """A response of this tenant; its time may be over."""
        return await asyncio.wrap_future(
            self._reader.submit(lambda database: database.find_response(tenant, response_id))
        )

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        """Forget a response; whether there was one."""
        return await to_the_end(self._writer.submit(lambda database: database.delete_response(tenant, response_id)))

    async def keep_tool_latencies(self, latencies: Sequence[StoredLatency]) -> None:
        """Keep how long tools took, in the place of what was kept of the same ones."""
        await to_the_end(self._writer.submit(lambda database: database.write_tool_latencies(latencies)))

    async def tool_latencies(self) -> list[StoredLatency]:
        """How long tools took, the one that was used longest ago first; bounded."""
        return await asyncio.wrap_future(self._reader.submit(lambda database: database.tool_latencies()))

    async def prune(self, before: float, now: float = 0.0) -> int:
        """Forget sessions closed, answers given and conversations used before that time, responses whose time is over
        ``now``, and all entries that nothing reaches.

        Returns the number of entries deleted.
        """
        return await to_the_end(self._writer.submit(lambda database: database.prune(before, now)))

    def prune_soon(self, before: float, now: float) -> None:
        """As ``prune``, behind the changes that wait already; a failure is only logged, the next one tries again."""
        pruning: Future[object] = self._writer.submit(lambda database: database.prune(before, now))
        pruning.add_done_callback(log_failure)

    def close(self) -> None:
        """Finish what was asked, fold the write-ahead log into the file and let go of the folder."""
        if self._closed:
            return
        self._closed = True
        self._opened.close()
