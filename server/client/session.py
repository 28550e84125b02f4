"""One session, for asyncio."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Generator
from types import TracebackType
from typing import Any, Unpack

import msgspec

from ...sessions.errors import RequestError, SessileError
from ...sessions.keeping import Hint
from ...sessions.manager.events import SessionEvent
from ...sessions.manager.requests import (
    Appended,
    AppendRequest,
    CloseRequest,
    ExportRequest,
    ForkRequest,
    GenerateRequest,
    HintOutcome,
    HintRequest,
    Resumed,
    ResumeRequest,
    RollbackRequest,
    SessionView,
    Suspended,
    SuspendRequest,
    ToolChoice,
    ToolResultInput,
    TurnInput,
    WatchRequest,
)
from ...sessions.manager.turn_events import TurnFinished, TurnSummary
from ..engine.messages import Priority
from ..engine.sampling_params import SamplingParams
from ..proto import keeping, requests, responses, turns, views
from ..proto import session_pb2 as pb
from .connection import Connection
from .options import (
    AppendOptions,
    ChangeOptions,
    GenerateOptions,
    TurnOptions,
    input_of,
    point_of,
    request_id_of,
    seeded,
)
from .session_file import write_whole
from .turn import AsyncTurn

logger = logging.getLogger(__name__)

_LOOK_S = 5.0  # for a look at the session after a cancelled turn


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
        self._view = views.read_session(answer.session)
        return self._view

    def generate(self, **options: Unpack[GenerateOptions]) -> AsyncTurn:
        """Run a turn: iterate over the deltas, then read ``finished``. It starts with the first step of the iteration.

        ``messages`` may be one text, which the user says. Without a seed one is drawn here, so that a turn that breaks
        off can be taken up again.
        """
        return self._turn(input_of(options), options)

    def tool_result(
        self, tool_call_id: str, content: str, *, name: str | None = None, **options: Unpack[TurnOptions]
    ) -> AsyncTurn:
        """Run a turn on the result of a tool call."""
        return self._turn(ToolResultInput(tool_call_id, content, name), options)

    async def append(self, **options: Unpack[AppendOptions]) -> Appended:
        """Add to the log and prefill, without an answer."""
        turn_input = input_of(options)
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
        message = requests.write_fork(ForkRequest(**self._change(options), at=point_of(turn, token)))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        answer = await self._connection.call(lambda: stub.Fork(message, timeout=timeout_s))
        return type(self)(self._connection, views.read_session(answer.session))

    async def rollback(
        self, *, turn: int | None = None, token: int | None = None, **options: Unpack[ChangeOptions]
    ) -> SessionView:
        """Go back to a turn or a token of the log."""
        to = point_of(turn, token)
        if to is None:
            raise RequestError("no point is named", field="to", remedy="name a turn or a token")
        message = requests.write_rollback(RollbackRequest(**self._change(options), to=to))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        answer = await self._connection.call(lambda: stub.Rollback(message, timeout=timeout_s))
        self._view = views.read_session(answer.session)
        return self._view

    async def hint(self, hint: Hint, **options: Unpack[ChangeOptions]) -> HintOutcome:
        """Say what is going to happen in the session. Also while a turn runs; whatever version it is at by then."""
        message = keeping.write_hint_request(HintRequest(**self._unversioned(options), hint=hint))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        return keeping.read_hint_outcome(await self._connection.call(lambda: stub.Hint(message, timeout=timeout_s)))

    async def suspend(self, **options: Unpack[ChangeOptions]) -> Suspended:
        """Give the session's device memory back; its KV goes to slower tiers."""
        message = keeping.write_suspend_request(SuspendRequest(**self._change(options)))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        answer = await self._connection.call(lambda: stub.Suspend(message, timeout=timeout_s))
        suspended = keeping.read_suspended(answer)
        self._view = suspended.session
        return suspended

    async def resume(self, **options: Unpack[ChangeOptions]) -> Resumed:
        """Begin to bring the session's KV back; says how long the next turn would wait for it."""
        message = keeping.write_resume_request(ResumeRequest(**self._unversioned(options)))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        resumed = keeping.read_resumed(await self._connection.call(lambda: stub.Resume(message, timeout=timeout_s)))
        if resumed.session.version == self.version:
            self._view = resumed.session
        return resumed

    async def turns(self, *, timeout_s: float | None = None) -> tuple[TurnSummary, ...]:
        """The session's finished turns: what each added, and what it cost."""
        message = pb.ListTurnsRequest(session_id=self.session_id, tenant=self._view.tenant)
        stub = self._connection.stub
        answer = await self._connection.call(lambda: stub.ListTurns(message, timeout=timeout_s))
        return tuple(turns.read_turn(turn) for turn in answer.turns)

    def watch(self) -> AsyncGenerator[SessionEvent, None]:
        """What happens in the session from now on; closing the iterator ends the watch. The first event says that it
        has begun."""
        return self._connection.watch(WatchRequest(session_id=self.session_id, tenant=self._view.tenant))

    def export(self, *, without_kv: bool = False) -> AsyncGenerator[bytes, None]:
        """The session as a file, in chunks, at the version that was seen last; ``export_to`` writes them.

        ``without_kv``: its log alone, whose KV is computed again where it is imported.
        """
        request = ExportRequest(
            session_id=self.session_id,
            tenant=self._view.tenant,
            expected_version=self.version,
            without_kv=without_kv,
        )
        return self._connection.export(request)

    async def export_to(self, path: str | os.PathLike[str], *, without_kv: bool = False) -> int:
        """Write the session to a file, whole or not at all; returns its size in bytes."""
        return await write_whole(path, self.export(without_kv=without_kv))

    async def close(self, **options: Unpack[ChangeOptions]) -> None:
        """Close the session for good, at whatever version it is."""
        message = requests.write_close(CloseRequest(**self._unversioned(options)))
        stub, timeout_s = self._connection.stub, options.get("timeout_s")
        answer = await self._connection.call(lambda: stub.Close(message, timeout=timeout_s))
        self._view = views.read_session(answer.session)
        self._closed = True

    def _turn(self, turn_input: TurnInput | None, options: TurnOptions) -> AsyncTurn:
        request = GenerateRequest(
            **self._change(options),
            input=turn_input,
            sampling=seeded(options.get("sampling", SamplingParams())),
            tool_choice=options.get("tool_choice", ToolChoice()),
            stop=tuple(options.get("stop", ())),
            priority=options.get("priority", Priority.INTERACTIVE),
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

    def _unversioned(self, options: ChangeOptions) -> dict[str, Any]:
        return {**self._change(options), "expected_version": None}

    def _change(self, options: ChangeOptions) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "tenant": self._view.tenant,
            "expected_version": self.version,
            "request_id": request_id_of(options),
        }
