"""One channel to a server: calls with retries, and errors with their types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from ...sessions.errors import SessileError
from ...sessions.manager.events import SessionEvent
from ...sessions.manager.requests import ExportRequest, Imported, ImportSession, WatchRequest
from ...sessions.manager.turn_events import TurnEvent
from ..proto import events, responses, transfer
from ..proto import session_pb2 as pb
from ..proto.session_pb2_grpc import SessionServiceStub
from .api_key import KeyedChannel
from .errors import from_rpc_error
from .retry import RetryPolicy

_Answer = TypeVar("_Answer")
_KEEPALIVE_MS = 30_000
_EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in its stubs


class Connection:
    """Sends wire messages. Must be made, used and closed inside one running event loop."""

    def __init__(
        self,
        target: str,
        retry: RetryPolicy,
        credentials: grpc.ChannelCredentials | None,
        api_key: str | None = None,
    ) -> None:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.initial_reconnect_backoff_ms", 100),  # a server that is back is found at once
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.enable_retries", 0),  # done here, where the request ids are known
        ]
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options=options)
        keyed = None if api_key is None else cast("grpc.aio.Channel", KeyedChannel(self._channel, api_key))
        self.stub = SessionServiceStub(keyed or self._channel)
        self.retry = retry

    async def call(self, send: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Send until it is answered, or the retry policy gives up.

        Raises:
            SessileError: the last attempt's.
        """

        async def typed() -> _Answer:
            try:
                return await send()
            except grpc.aio.AioRpcError as rpc_error:
                raise from_rpc_error(rpc_error) from rpc_error

        return await self.repeat(typed)

    async def repeat(self, send: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """As ``call``, for what raises our errors already."""
        attempt = 1
        while True:
            try:
                return await send()
            except SessileError as error:
                delay_s = self.retry.delay_s(error, attempt)
                if delay_s is None:
                    raise
            await self.retry.sleep(delay_s)
            attempt += 1

    async def generate_once(
        self, message: pb.GenerateRequest, timeout_s: float | None
    ) -> AsyncGenerator[TurnEvent, None]:
        """The events of one attempt. Closing it cancels the call.

        Raises:
            SessileError: the server's, or ConnectionLost if the stream ends without the turn's end.
        """
        async with aclosing(_responses(self.stub.Generate(message, timeout=timeout_s))) as found:
            async for response in found:
                event = responses.read_event(response, message.session_id)
                if event is not None:
                    yield event

    async def watch(self, request: WatchRequest) -> AsyncGenerator[SessionEvent, None]:
        """Events until the server ends the watch. Closing it cancels the call.

        Raises:
            SessileError: the server's, or ConnectionLost if the connection breaks; what happens then is not told.
        """
        async with aclosing(_responses(self.stub.Watch(events.write_watch(request)))) as found:
            async for response in found:
                event = events.read_session_event(response)
                if event is not None:
                    yield event

    async def export(self, request: ExportRequest) -> AsyncGenerator[bytes, None]:
        """A session's file, in chunks. It is sent once: after an error, begin again.

        Raises:
            SessileError: the server's, or ConnectionLost.
        """
        async with aclosing(_responses(self.stub.Export(transfer.write_export(request)))) as found:
            async for response in found:
                yield response.chunk

    async def import_once(self, request: ImportSession, chunks: AsyncIterator[bytes]) -> Imported:
        """A session from a file.

        Raises:
            SessileError: the server's, or ConnectionLost.
            BaseException: what ``chunks`` raises, for which gRPC has no way to its caller.
        """
        failures: list[BaseException] = []
        header = pb.ImportRequest(header=transfer.write_import(request))
        call = self.stub.Import(None)

        async def messages() -> AsyncGenerator[pb.ImportRequest, None]:
            yield header
            try:
                async for chunk in chunks:
                    yield pb.ImportRequest(chunk=chunk)
            except GeneratorExit:  # closed by ``send``
                raise
            except BaseException as error:
                failures.append(error)
                raise

        async def send() -> None:
            try:
                async with aclosing(messages()) as to_send:
                    async for message in to_send:
                        await call.write(message)
                        if answered.done():
                            break  # the server wants no more of it
                await call.done_writing()
            except BaseException:
                call.cancel()  # else the server would wait for the rest, and we for the server
                raise

        answered = asyncio.ensure_future(call.initial_metadata())
        sending = asyncio.create_task(send())
        try:
            return transfer.read_imported(await call)
        except grpc.aio.AioRpcError as rpc_error:
            raise (failures or [from_rpc_error(rpc_error)])[0] from rpc_error
        except asyncio.CancelledError:
            if failures:
                raise failures[0] from None
            raise
        finally:
            call.cancel()
            answered.cancel()
            sending.cancel()
            await asyncio.gather(answered, sending, return_exceptions=True)  # what stopped them is told above

    async def close(self) -> None:
        await self._channel.close(None)


async def _responses(call: Any) -> AsyncGenerator[Any, None]:
    """What a call streams; closing it cancels the call. Read one by one: gRPC's own iterator is never closed.

    Raises:
        SessileError: the server's, or ConnectionLost.
    """
    try:
        while (response := await call.read()) is not _EOF:
            yield response
    except grpc.aio.AioRpcError as rpc_error:
        raise from_rpc_error(rpc_error) from rpc_error
    finally:
        call.cancel()
