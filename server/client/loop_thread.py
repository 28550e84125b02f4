"""An event loop in a thread of its own, for those who have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, cast

from ...sessions.errors import SessileError

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class _Loop(asyncio.SelectorEventLoop):
    """One that may be closed while gRPC still has calls of it to end.

    Each end of a call comes to some loop of the process and is handed on to the call's own; if that is closed and says
    so by an error, all that comes behind it waits with it.
    """

    def call_soon_threadsafe(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """As ever; once the loop is closed, nothing happens."""
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
            handle = asyncio.Handle(callback, args, self, context)
            handle.cancel()
            return handle


class LoopThread:
    """An event loop that runs in a thread until it is stopped; the thread closes it."""

    def __init__(self) -> None:
        self._loop = _Loop()
        self._loop.set_exception_handler(_on_loop_error)
        self._submitting = threading.Lock()  # held to submit: what is submitted last is what ends the loop
        self._stopping = False
        self._thread = threading.Thread(target=self._live, name="sessile-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for ``work``; an interrupted wait (Ctrl-C) cancels it.

        Raises:
            SessileError: the loop is stopped, or being stopped.
        """
        with self._submitting:
            if self._stopping:
                work.close()
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return self._wait(future)

    def _wait(self, future: concurrent.futures.Future[_Result]) -> _Result:
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._stopping:
                raise _closed() from None
            raise
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Callable[[], Awaitable[None]]) -> None:
        """Do ``last``, and end what still runs, as ``asyncio.run`` does; those who wait for it in other threads are
        told. The second to stop it waits for the first one's end."""
        with self._submitting:
            first, self._stopping = not self._stopping, True
            finishing = asyncio.run_coroutine_threadsafe(self._finish(last), self._loop) if first else None
        try:
            if finishing is not None:
                self._wait(finishing)
        finally:
            self._thread.join()

    def _live(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _finish(self, last: Callable[[], Awaitable[None]]) -> None:
        finishing = cast("asyncio.Task[None]", asyncio.current_task())
        # However it ends, and after who waits for it was told, whose callback is older.
        finishing.add_done_callback(lambda _: self._loop.stop())
        try:
            await last()
        finally:
            left = asyncio.all_tasks() - {finishing}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()


def _closed() -> SessileError:
    return SessileError("the client is closed", remedy="make another")


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Every loop of a process that uses grpc.aio is woken for each one's events; those woken for nothing say so."""
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
