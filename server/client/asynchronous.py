"""The client for asyncio."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType
from typing import Unpack

import grpc

from ...sessions.manager.events import SessionEvent
from ...sessions.manager.requests import (
    Imported,
    ImportSession,
    ListSessions,
    OpenSession,
    SessionView,
    WatchRequest,
)
from ..proto import requests, responses, views
from ..proto import session_pb2 as pb
from .api_key import api_key_or_variable
from .connection import Connection
from .options import OpenOptions, request_id_of
from .retry import RetryPolicy
from .session import AsyncSession, Opening
from .session_file import read_chunks

DEFAULT_TARGET = "127.0.0.1:50051"


class AsyncSessionClient:
    """Sessions of one tenant on one server.

    ::

        async with AsyncSessionClient("localhost:50051") as client:
            async with client.open(system="Be brief.") as session:
                async for delta in session.generate(messages="What is a session?"):
                    print(delta.text, end="")

    Make it inside a running event loop. Every method raises the errors of ``sessions/errors.py`` that the server sends,
    or those of ``errors.py`` here; calls that may succeed in a moment are sent again first.

    ``api_key`` None takes the environment's ``SESSILE_API_KEY``. ``credentials`` None: without TLS, where a key is in
    the clear: keep to this machine, or to a network that is yours.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        tenant: str = "",
        retry: RetryPolicy | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        api_key: str | None = None,
    ) -> None:
        self.tenant = tenant
        key = api_key_or_variable(api_key)
        self._connection = Connection(target, retry if retry is not None else RetryPolicy(), credentials, key)

    async def __aenter__(self) -> AsyncSessionClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. Sessions stay as they are."""
        await self._connection.close()

    def open(
        self,
        **options: Unpack[OpenOptions],
    ) -> Opening:
        """Open a session: ``await`` it to keep the session, or use it in ``async with`` to close the session after.

        ``persistence`` says when its KV is written to disk; left out, the server decides.
        """
        request = OpenSession(
            tenant=self.tenant,
            model=options.get("model"),
            system=options.get("system"),
            tools=tuple(options.get("tools", ())),
            request_id=request_id_of(options),
            persistence=options.get("persistence"),
        )
        return Opening(self._open(request, options.get("timeout_s")))

    async def session(self, session_id: str, *, timeout_s: float | None = None) -> AsyncSession:
        """An open session, to go on with."""
        message = pb.GetRequest(session_id=session_id, tenant=self.tenant)
        answer = await self._connection.call(lambda: self._connection.stub.Get(message, timeout=timeout_s))
        return AsyncSession(self._connection, views.read_session(answer.session))

    async def sessions(self, *, page_size: int = requests.DEFAULT_PAGE_SIZE) -> AsyncIterator[SessionView]:
        """All open sessions of the tenant, oldest first, without their system prompts and tools."""
        page_token = ""
        while True:
            message = requests.write_list(ListSessions(tenant=self.tenant, page_size=page_size, page_token=page_token))
            page = responses.read_page(await self._connection.call(lambda: self._connection.stub.List(message)))  # noqa: B023
            for view in page.sessions:
                yield view
            page_token = page.next_page_token
            if not page_token:
                return

    def watch(self) -> AsyncGenerator[SessionEvent, None]:
        """What happens in all sessions of the tenant from now on; closing the iterator ends the watch."""
        return self._connection.watch(WatchRequest(tenant=self.tenant))

    async def import_session(
        self,
        file: str | os.PathLike[str] | AsyncIterator[bytes],
        *,
        without_kv: bool = False,
        request_id: str | None = None,
    ) -> tuple[AsyncSession, Imported]:
        """A session from a file that an export wrote, and what became of the file's KV.

        A path is read, and sent again under the same id if the connection breaks; chunks are sent once.
        ``without_kv``: do not use the file's KV.
        """
        request = ImportSession(tenant=self.tenant, request_id=request_id or uuid.uuid4().hex, without_kv=without_kv)
        if isinstance(file, str | os.PathLike):
            path = file
            imported = await self._connection.repeat(lambda: self._import_file(request, path))
        else:
            imported = await self._connection.import_once(request, file)
        return AsyncSession(self._connection, imported.session), imported

    async def _import_file(self, request: ImportSession, path: str | os.PathLike[str]) -> Imported:
        async with aclosing(read_chunks(path)) as chunks:
            return await self._connection.import_once(request, chunks)

    async def _open(self, request: OpenSession, timeout_s: float | None) -> AsyncSession:
        message = requests.write_open(request)
        answer = await self._connection.call(lambda: self._connection.stub.Open(message, timeout=timeout_s))
        return AsyncSession(self._connection, views.read_session(answer.session))
