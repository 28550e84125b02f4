"""The interceptor that gives every error its gRPC status, known or not, and refuses what cannot be read."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ...sessions.errors import DeadlineExceeded, RequestError, SessileError
from ..error_status import status_of
from ..identity.gate import Gate
from ..proto.errors import DETAILS_KEY, to_status
from .authentication import identify
from .patience import EOF, Context, next_message

logger = logging.getLogger(__name__)

_OURS = "/sessile."
_LINGER_S = 5.0
_Behaviour = Callable[[Context], Awaitable[Any]]
_Refuse = Callable[[Context, SessileError], Awaitable[None]]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Around every method of ours: errors of ``sessions/errors.py`` become their status with details, others INTERNAL.

    An unexpected error is logged with an id, and the id is all that the caller is told of it. A request that is no
    message of its type, or has fields that this server does not know, never reaches the servicer: a field ignored
    would be a wish refused in silence. Nor does a call without a valid key, where there are keys.
    """

    def __init__(self, gate: Gate, send_timeout_s: float) -> None:
        """``send_timeout_s``: seconds for each message of a request."""
        self._gate = gate
        self._send_timeout_s = send_timeout_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """To gRPC every request is a stream, also one message: gRPC itself would wait for that for ever."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(_OURS):
            return handler
        if handler.request_streaming:
            behaviour, refuse = _with_requests(handler.stream_unary, self._send_timeout_s), _refuse_sender
        else:
            one = handler.unary_stream or handler.unary_unary
            behaviour, refuse = _with_request(one, self._send_timeout_s), _abort
        as_handler = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        guarded = _with_status(behaviour, method, self._gate, refuse)
        return as_handler(guarded, _decoding(handler.request_deserializer), handler.response_serializer)


class _Undecodable:
    """What stands for a request that is not of its type."""


def _decoding(deserialise: Any) -> Callable[[bytes], Any]:
    def decode(serialised: bytes) -> Any:
        try:
            return deserialise(serialised)
        except (DecodeError, UnicodeDecodeError):
            return _Undecodable()

    return decode


def _with_request(behaviour: Any, within_s: float) -> _Behaviour:
    """A method with one request."""

    async def called(context: Context) -> Any:
        request = await next_message(context, within_s)
        if request is None:
            raise RequestError("the call has no request", remedy="send one message")
        _require_known(request)
        return await behaviour(request, context)

    return called


def _with_requests(behaviour: Any, within_s: float) -> _Behaviour:
    """A method with a stream of requests."""

    async def called(context: Context) -> Any:
        async with aclosing(_requests(context, within_s)) as requests:
            return await behaviour(requests, context)

    return called


async def _requests(context: Context, within_s: float) -> AsyncGenerator[Any, None]:
    while (request := await next_message(context, within_s)) is not None:
        _require_known(request)
        yield request


def _with_status(
    behaviour: _Behaviour, method: str, gate: Gate, refuse: _Refuse
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def guarded(_: Any, context: Context) -> Any:
        try:
            identify(gate, context)  # before anything of the request is read
            return await behaviour(context)
        except SessileError as error:
            if status_of(error).grpc_code is grpc.StatusCode.INTERNAL:
                logger.error("%s failed: %s", method, error)  # the operator's to mend, not the caller's
            await refuse(context, error)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            incident = uuid.uuid4().hex[:12]
            logger.exception("unexpected error in %s, incident %s", method, incident, exc_info=error)
            await refuse(context, SessileError(f"an unexpected error, incident {incident} in the server's log"))

    return guarded


async def _refuse_sender(context: Context, error: SessileError) -> None:
    """Say that an answer is coming, and drop what the client sends until it stops, or for so many seconds: a client
    that is cut off while it writes may never see why. One that was waited for already is not."""
    if not isinstance(error, DeadlineExceeded):
        await context.send_initial_metadata(())
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while await context.read() is not EOF:
                    pass
    await _abort(context, error)


async def _abort(context: Context, error: SessileError) -> None:
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
