"""The client for asyncio."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Generator, Sequence
from types import TracebackType
from typing import Any, TypedDict, Unpack

import grpc
import msgspec

from ...sessions.errors import RequestError, SessileError
from ...sessions.manager.requests import (
    Appended,
    AppendRequest,
    CloseRequest,
    ForkRequest,
    GenerateRequest,
    ListSessions,
    MessagesInput,
    OpenSession,
    RollbackRequest,
    SessionView,
    TextInput,
    TokenIdsInput,
    ToolChoice,
    ToolResultInput,
    TurnFinished,
    TurnInput,
)
from ...sessions.messages import Message, Role, Tool
from ...sessions.session import AtToken, AtTurn, Point
from ..engine.messages import Priority
from ..engine.sampling_params import SamplingParams
from ..proto import requests, responses
from ..proto import session_pb2 as pb
from .connection import Connection
from .retry import RetryPolicy
from .turn import AsyncTurn

logger = logging.getLogger(__name__)

DEFAULT_TARGET = "127.0.0.1:50051"
_LOOK_S = 5.0  # for a look at the session after a cancelled turn


class InputOptions(TypedDict, total=False):
    """What to add to the log: one of these."""

    messages: Sequence[Message] | str
    text: str
    token_ids: Sequence[int]


class ChangeOptions(TypedDict, total=False):
    """``request_id``: the same one twice gets the same answer; left out, each call has its own, kept over its retries.

    ``timeout_s`` bounds one attempt.
    """

    request_id: str
    timeout_s: float | None


class TurnOptions(ChangeOptions, total=False):
    """How to run a turn."""

    sampling: SamplingParams
    stop: Sequence[str]
    priority: Priority
    tool_choice: ToolChoice


class GenerateOptions(InputOptions, TurnOptions, total=False):
    """Input, and how to run the turn. Without input the log is answered as it is."""


class AppendOptions(InputOptions, ChangeOptions, total=False):
    """Input, and how to send it."""

    priority: Priority


class AsyncSessionClient:
    """Sessions of one tenant on one server.

    ::

        async with AsyncSessionClient("localhost:50051") as client:
            async with client.open(system="Be brief.") as session:
                async for delta in session.generate(messages="What is a session?"):
                    print(delta.text, end="")

    Make it inside a running event loop. Every method raises the errors of ``sessions/errors.py`` that the server sends,
    or those of ``errors.py`` here; calls that may succeed in a moment are sent again first.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        tenant: str = "",
        retry: RetryPolicy | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.tenant = tenant
        self._connection = Connection(target, retry if retry is not None else RetryPolicy(), credentials)

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
        *,
        system: str | None = None,
        tools: Sequence[Tool] = (),
        model: str | None = None,
        **options: Unpack[ChangeOptions],
    ) -> Opening:
        """Open a session: ``await`` it to keep the session, or use it in ``async with`` to close the session after."""
        request = OpenSession(
            tenant=self.tenant,
            model=model,
            system=system,
            tools=tuple(tools),
            request_id=_request_id(options),
        )
        return Opening(self._open(request, options.get("timeout_s")))

    async def session(self, session_id: str, *, timeout_s: float | None = None) -> AsyncSession:
        """An open session, to go on with."""
        message = pb.GetRequest(session_id=session_id, tenant=self.tenant)
        answer = await self._connection.call(lambda: self._connection.stub.Get(message, timeout=timeout_s))
        return AsyncSession(self._connection, responses.read_session(answer.session))

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

    async def _open(self, request: OpenSession, timeout_s: float | None) -> AsyncSession:
        message = requests.write_open(request)
        answer = await self._connection.call(lambda: self._connection.stub.Open(message, timeout=timeout_s))
        return AsyncSession(self._connection, responses.read_session(answer.session))


class Opening:
    """A session that is being opened: awaitable, or a context that closes the session at its end."""

    def __init__(self, opening: Awaitable[AsyncSession]) -> None:
        self._opening = opening
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._opening.__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._opening
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await close_after_block(self._session, error)


async def close_after_block(session: AsyncSession, error: BaseException | None) -> None:
    """Close at the end of a ``with`` block, whose own error is not to be hidden by one of closing."""
    if session.closed:
        return
    try:
        await session.close()
    except SessileError:
        if error is None:
            raise
        logger.warning("session %s was not closed", session.session_id)


class AsyncSession:
    """One session. It remembers the version that it has seen last, and changes no other.

    If another program changed the session meanwhile, the next change raises StaleVersion; ``refresh`` then looks again.
    """

    def __init__(self, connection: Connection, view: SessionView) -> None:
        self._connection = connection
        self._view = view
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id} version {self.version}>"

    @property
    def session_id(self) -> str:
        return self._view.session_id

    @property
    def version(self) -> int:
        return self._view.version

    @property
    def view(self) -> SessionView:
        """The session as it was seen last."""
        return self._view

    @property
    def closed(self) -> bool:
        return self._closed

    async def refresh(self, *, timeout_s: float | None = None) -> SessionView:
        """Look at the session again."""
        message = pb.GetRequest(session_id=self.session_id, tenant=self._view.tenant)
        answer = await self._connection.call(lambda: self._connection.stub.Get(message, timeout=timeout_s))
        self._view = responses.read_session(answer.session)
        return self._view

    def generate(self, **options: Unpack[GenerateOptions]) -> AsyncTurn:
        """Run a turn: iterate over the deltas, then read ``finished``. It starts with the first step of the iteration.

        ``messages`` may be one text, which the user says. Without a seed one is drawn here, so that a turn that breaks
        off can be taken up again.
        """
        return self._turn(_input(options), options)

    def tool_result(
        self, tool_call_id: str, content: str, *, name: str | None = None, **options: Unpack[TurnOptions]
    ) -> AsyncTurn:
        """Run a turn on the result of a tool call."""
        return self._turn(ToolResultInput(tool_call_id, content, name), options)

    async def append(self, **options: Unpack[AppendOptions]) -> Appended:
        """Add to the log and prefill, without an answer."""
        turn_input = _input(options)
        if turn_input is None:
            raise RequestError("there is nothing to append", remedy="give messages, text or token_ids")
        message = requests.write_append(
            AppendRequest(
                **self._change(options), input=turn_input, priority=options.get("priority", Priority.INTERACTIVE)
            )
        )
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        appended = responses.read_appended(await self._connection.call(lambda: stub.Append(message, timeout=timeout_s)))
        self._view = appended.session
        return appended

    async def fork(
        self, *, turn: int | None = None, token: int | None = None, **options: Unpack[ChangeOptions]
    ) -> AsyncSession:
        """Another session on the same log, up to a turn or a token (neither: all of it)."""
        message = requests.write_fork(ForkRequest(**self._change(options), at=_point(turn, token)))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        answer = await self._connection.call(lambda: stub.Fork(message, timeout=timeout_s))
        return type(self)(self._connection, responses.read_session(answer.session))

    async def rollback(
        self, *, turn: int | None = None, token: int | None = None, **options: Unpack[ChangeOptions]
    ) -> SessionView:
        """Go back to a turn or a token of the log."""
        to = _point(turn, token)
        if to is None:
            raise RequestError("no point is named", field="to", remedy="name a turn or a token")
        message = requests.write_rollback(RollbackRequest(**self._change(options), to=to))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        answer = await self._connection.call(lambda: stub.Rollback(message, timeout=timeout_s))
        self._view = responses.read_session(answer.session)
        return self._view

    async def close(self, **options: Unpack[ChangeOptions]) -> None:
        """Close the session for good, at whatever version it is."""
        message = requests.write_close(CloseRequest(**{**self._change(options), "expected_version": None}))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        answer = await self._connection.call(lambda: stub.Close(message, timeout=timeout_s))
        self._view = responses.read_session(answer.session)
        self._closed = True

    def _turn(self, turn_input: TurnInput | None, options: TurnOptions) -> AsyncTurn:
        request = GenerateRequest(
            **self._change(options),
            input=turn_input,
            sampling=_seeded(options.get("sampling", SamplingParams())),
            stop=tuple(options.get("stop", ())),
            priority=options.get("priority", Priority.INTERACTIVE),
            tool_choice=options.get("tool_choice", ToolChoice()),
        )
        message = requests.write_generate(request)
        return AsyncTurn(self._connection, message, options.get("timeout_s"), self._finished, self._cancelled)

    def _finished(self, finished: TurnFinished) -> None:
        self._view = msgspec.structs.replace(
            self._view, version=finished.version, num_tokens=finished.num_tokens, num_turns=finished.turn
        )

    async def _cancelled(self) -> None:
        """A turn may be committed at the very moment in which it is cancelled: see what became of it."""
        try:
            await self.refresh(timeout_s=_LOOK_S)
        except SessileError as error:
            logger.info("session %s was not looked at after a cancelled turn: %s", self.session_id, error)

    def _change(self, options: ChangeOptions) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "tenant": self._view.tenant,
            "expected_version": self.version,
            "request_id": _request_id(options),
        }


def _request_id(options: ChangeOptions) -> str:
    return options.get("request_id") or uuid.uuid4().hex


def _seeded(sampling: SamplingParams) -> SamplingParams:
    if sampling.seed is not None or sampling.temperature == 0.0:
        return sampling
    return msgspec.structs.replace(sampling, seed=secrets.randbits(63))


def _input(options: InputOptions) -> TurnInput | None:
    given = [name for name in ("messages", "text", "token_ids") if options.get(name) is not None]
    if len(given) > 1:
        raise RequestError(f"both {given[0]} and {given[1]} are given", field="input", remedy="give one of them")
    messages = options.get("messages")
    if isinstance(messages, str):
        return MessagesInput((Message(role=Role.USER, content=messages),))
    if messages is not None:
        return MessagesInput(tuple(messages))
    if (text := options.get("text")) is not None:
        return TextInput(text)
    if (token_ids := options.get("token_ids")) is not None:
        return TokenIdsInput(tuple(token_ids))
    return None


def _point(turn: int | None, token: int | None) -> Point | None:
    if turn is not None and token is not None:
        raise RequestError("both a turn and a token are named", field="at", remedy="name one of them")
    if turn is not None:
        return AtTurn(turn)
    return None if token is None else AtToken(token)
