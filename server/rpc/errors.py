"""The interceptor that gives every error its gRPC status, known or not, and refuses what cannot be read."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ...sessions.errors import RequestError, SessileError
from ..error_status import status_of
from ..identity.gate import Gate
from ..proto.errors import DETAILS_KEY, to_status
from .authentication import identify

logger = logging.getLogger(__name__)

_OURS = "/sessile."
_LINGER_S = 5.0
_Behaviour = Callable[[Any, Any], Awaitable[Any]]
_Refuse = Callable[[Any, Any, SessileError], Awaitable[None]]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Around every method of ours: errors of ``sessions/errors.py`` become their status with details, others INTERNAL.

    An unexpected error is logged with an id, and the id is all that the caller is told of it. A request that is no
    message of its type, or has fields that this server does not know, never reaches the servicer: a field ignored
    would be a wish refused in silence. Nor does a call without a valid key, where there are keys.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_OURS):
            return handler
        deserialise = _decoding(handler.request_deserializer)
        method = handler_call_details.method
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(
                _guarded_stream(handler.stream_unary, method, self._gate), deserialise, handler.response_serializer
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _guarded(handler.unary_stream, method, self._gate), deserialise, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _guarded(handler.unary_unary, method, self._gate), deserialise, handler.response_serializer
        )


class _Undecodable:
    """What stands for a request that is not of its type."""


def _decoding(deserialise: Any) -> Callable[[bytes], Any]:
    def decode(serialised: bytes) -> Any:
        try:
            return deserialise(serialised)
        except (DecodeError, UnicodeDecodeError):
            return _Undecodable()

    return decode


def _guarded(behaviour: Any, method: str, gate: Gate) -> _Behaviour:
    """A method with one request."""

    async def checked(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        _require_known(request)
        return await behaviour(request, context)

    return _with_status(checked, method, gate, _abort)


def _guarded_stream(behaviour: Any, method: str, gate: Gate) -> _Behaviour:
    """A method with a stream of requests, which is closed at its end: gRPC makes it of a generator of its own."""

    async def checked(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        async with aclosing(_known(requests)) as known:
            return await behaviour(known, context)

    async def refuse(requests: AsyncIterator[Any], context: Any, error: SessileError) -> None:
        await _let_finish(requests, context)
        await _abort(requests, context, error)

    guarded = _with_status(checked, method, gate, refuse)

    async def closed_at_the_end(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        async with aclosing(aiter(requests)) as received:
            return await guarded(received, context)

    return closed_at_the_end


async def _let_finish(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Say that an answer is coming, and drop what the client sends until it stops, or for so many seconds: a client
    that is cut off while it writes may never see why."""
    await context.send_initial_metadata(())
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            async for _ in requests:
                pass


async def _known(requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    async for request in requests:
        _require_known(request)
        yield request


def _with_status(behaviour: _Behaviour, method: str, gate: Gate, refuse: _Refuse) -> _Behaviour:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            identify(gate, context)
            return await behaviour(request, context)
        except SessileError as error:
            if status_of(error).grpc_code is grpc.StatusCode.INTERNAL:
                logger.error("%s failed: %s", method, error)  # the operator's to mend, not the caller's
            await refuse(request, context, error)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            incident = uuid.uuid4().hex[:12]
            logger.exception("unexpected error in %s, incident %s", method, incident, exc_info=error)
            told = SessileError(f"an unexpected error, incident {incident} in the server's log")
            await refuse(request, context, told)

    return guarded


async def _abort(request: object, context: grpc.aio.ServicerContext[Any, Any], error: SessileError) -> None:
    status = to_status(error)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    await context.abort(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))


def _require_known(request: Message | _Undecodable) -> None:
    if isinstance(request, _Undecodable):
        raise RequestError(
            "the request is not a message of this method", remedy="check its encoding; text must be valid UTF-8"
        )
    for path, message in _parts(request, ""):
        for unknown in _unknown_fields(message):
            raise RequestError(
                f"{message.DESCRIPTOR.name} has no field {unknown.field_number} here",
                field=f"{path}{unknown.field_number}",
                remedy="leave it out, or use a server of the client's version",
            )


def _unknown_fields(message: Message) -> Iterator[Any]:
    unknown: Any = UnknownFieldSet(message)
    return iter(unknown)


def _parts(message: Message, path: str) -> Iterator[tuple[str, Message]]:
    """A message and all messages in it, each with the path to its fields."""
    yield path, message
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is None or kind.GetOptions().map_entry:  # maps are of plain values
            continue
        if isinstance(value, Message):
            yield from _parts(value, f"{path}{field.name}.")
        else:
            for index, part in enumerate(value):
                yield from _parts(part, f"{path}{field.name}[{index}].")
