"""The client without asyncio: the asynchronous one, run on an event loop in a thread of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Unpack

import grpc

from ...sessions.keeping import Hint
from ...sessions.manager.events import SessionEvent
from ...sessions.manager.requests import Appended, HintOutcome, Imported, Resumed, SessionView, Suspended
from ...sessions.manager.turn_events import TextDelta, TurnDelta, TurnFinished, TurnSummary
from ...sessions.messages import ToolCall
from ..proto.requests import DEFAULT_PAGE_SIZE
from .asynchronous import DEFAULT_TARGET, AsyncSessionClient
from .loop_thread import LoopThread
from .options import AppendOptions, ChangeOptions, GenerateOptions, OpenOptions, TurnOptions
from .retry import RetryPolicy
from .session import AsyncSession, close_after_block
from .turn import AsyncTurn


class SessionClient:
    """Sessions of one tenant on one server; see ``AsyncSessionClient``, whose methods these are.

    ::

        with SessionClient("localhost:50051") as client, client.open(system="Be brief.") as session:
            for delta in session.generate(messages="What is a session?"):
                print(delta.text, end="")

    May be used by several threads.
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
        self._loop = LoopThread()

        async def connect() -> AsyncSessionClient:  # inside the loop that will use the channel
            return AsyncSessionClient(target, tenant=tenant, retry=retry, credentials=credentials, api_key=api_key)

        try:
            self._client = self._loop.run(connect())
        except BaseException:
            self._loop.stop(_nothing)
            raise

    def __enter__(self) -> SessionClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def tenant(self) -> str:
        return self._client.tenant

    def close(self) -> None:
        """Close the connection. Sessions stay as they are. What other threads wait for ends with a SessileError."""
        self._loop.stop(self._client.aclose)

    def open(
        self,
        **options: Unpack[OpenOptions],
    ) -> Session:
        """Open a session. Used in ``with``, the session is closed after; otherwise it stays open."""

        async def open_session() -> AsyncSession:
            return await self._client.open(**options)

        return Session(self._loop, self._loop.run(open_session()))

    def session(self, session_id: str, *, timeout_s: float | None = None) -> Session:
        """An open session, to go on with."""
        return Session(self._loop, self._loop.run(self._client.session(session_id, timeout_s=timeout_s)))

    def sessions(self, *, page_size: int = DEFAULT_PAGE_SIZE) -> list[SessionView]:
        """All open sessions of the tenant, oldest first, without their system prompts and tools."""

        async def collect() -> list[SessionView]:
            return [view async for view in self._client.sessions(page_size=page_size)]

        return self._loop.run(collect())

    def import_session(
        self, path: str | os.PathLike[str], *, without_kv: bool = False, request_id: str | None = None
    ) -> tuple[Session, Imported]:
        """A session from a file that an export wrote, and what became of the file's KV."""
        importing = self._client.import_session(path, without_kv=without_kv, request_id=request_id)
        session, imported = self._loop.run(importing)
        return Session(self._loop, session), imported

    def watch(self) -> Watch:
        """What happens in all sessions of the tenant from now on."""
        return Watch(self._loop, self._client.watch())


class Watch:
    """Events as they come: iterate over it, and close it (or leave its ``with`` block) to end the watch."""

    def __init__(self, loop: LoopThread, events: AsyncGenerator[SessionEvent, None]) -> None:
        self._loop = loop
        self._events = events

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[SessionEvent]:
        return self

    def __next__(self) -> SessionEvent:
        async def step() -> SessionEvent | None:  # StopIteration cannot cross a future
            return await anext(self._events, None)

        event = self._loop.run(step())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """End the watch."""
        self._loop.run(self._events.aclose())


class Session:
    """One session; see ``AsyncSession``."""

    def __init__(self, loop: LoopThread, session: AsyncSession) -> None:
        self._loop = loop
        self._session = session

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(close_after_block(self._session, error))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id} version {self.version}>"

    @property
    def session_id(self) -> str:
        return self._session.session_id

    @property
    def version(self) -> int:
        return self._session.version

    @property
    def view(self) -> SessionView:
        """The session as it was seen last."""
        return self._session.view

    @property
    def closed(self) -> bool:
        return self._session.closed

    def refresh(self, *, timeout_s: float | None = None) -> SessionView:
        """Look at the session again."""
        return self._loop.run(self._session.refresh(timeout_s=timeout_s))

    def generate(self, **options: Unpack[GenerateOptions]) -> Turn:
        """Run a turn: iterate over the deltas, then read ``finished``."""
        return Turn(self._loop, self._session.generate(**options))

    def tool_result(
        self, tool_call_id: str, content: str, *, name: str | None = None, **options: Unpack[TurnOptions]
    ) -> Turn:
        """Run a turn on the result of a tool call."""
        return Turn(self._loop, self._session.tool_result(tool_call_id, content, name=name, **options))

    def append(self, **options: Unpack[AppendOptions]) -> Appended:
        """Add to the log and prefill, without an answer."""
        return self._loop.run(self._session.append(**options))

    def fork(self, *, turn: int | None = None, token: int | None = None, **options: Unpack[ChangeOptions]) -> Session:
        """Another session on the same log, up to a turn or a token (neither: all of it)."""
        return Session(self._loop, self._loop.run(self._session.fork(turn=turn, token=token, **options)))

    def rollback(
        self, *, turn: int | None = None, token: int | None = None, **options: Unpack[ChangeOptions]
    ) -> SessionView:
        """Go back to a turn or a token of the log."""
        return self._loop.run(self._session.rollback(turn=turn, token=token, **options))

    def hint(self, hint: Hint, **options: Unpack[ChangeOptions]) -> HintOutcome:
        """Say what is going to happen in the session."""
        return self._loop.run(self._session.hint(hint, **options))

    def suspend(self, **options: Unpack[ChangeOptions]) -> Suspended:
        """Give the session's device memory back."""
        return self._loop.run(self._session.suspend(**options))

    def resume(self, **options: Unpack[ChangeOptions]) -> Resumed:
        """Begin to bring the session's KV back; says how long the next turn would wait for it."""
        return self._loop.run(self._session.resume(**options))

    def turns(self, *, timeout_s: float | None = None) -> tuple[TurnSummary, ...]:
        """The session's finished turns: what each added, and what it cost."""
        return self._loop.run(self._session.turns(timeout_s=timeout_s))

    def watch(self) -> Watch:
        """What happens in the session from now on."""
        return Watch(self._loop, self._session.watch())

    def export_to(self, path: str | os.PathLike[str], *, without_kv: bool = False) -> int:
        """Write the session to a file, whole or not at all; returns its size in bytes."""
        return self._loop.run(self._session.export_to(path, without_kv=without_kv))

    def close(self, **options: Unpack[ChangeOptions]) -> None:
        """Close the session for good."""
        self._loop.run(self._session.close(**options))


class Turn:
    """A running turn; see ``AsyncTurn``."""

    def __init__(self, loop: LoopThread, turn: AsyncTurn) -> None:
        self._loop = loop
        self._turn = turn

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[TextDelta]:
        return self

    def __next__(self) -> TextDelta:
        async def step() -> TextDelta | None:  # StopIteration cannot cross a future
            return await anext(self._turn, None)

        delta = self._loop.run(step())
        if delta is None:
            raise StopIteration
        return delta

    def close(self) -> None:
        """Cancel the turn if it still runs."""
        self._loop.run(self._turn.aclose())

    def wait(self) -> TurnFinished:
        """Read what is left of the turn; returns its end."""
        return self._loop.run(self._turn.wait())

    @property
    def text(self) -> str:
        """The answer, as far as it was read."""
        return self._turn.text

    def events(self) -> Iterator[TurnDelta]:
        """All kinds of deltas; see ``AsyncTurn.events``."""
        events = self._turn.events()

        async def step() -> TurnDelta | None:
            return await anext(events, None)

        while (delta := self._loop.run(step())) is not None:
            yield delta

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered, as far as it was read."""
        return self._turn.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the answer makes."""
        return self._turn.tool_calls

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The sampled tokens, as far as they were read."""
        return self._turn.token_ids

    @property
    def finished(self) -> TurnFinished:
        """The turn's end: reason, usage, version."""
        return self._turn.finished


async def _nothing() -> None:
    pass
