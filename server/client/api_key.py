"""Sends an API key with each call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio

VARIABLE = "SESSILE_API_KEY"


def api_key_or_variable(api_key: str | None) -> str | None:
    """The given key, or that of the environment; None: neither is there."""
    return api_key or os.environ.get(VARIABLE) or None


def with_api_key(api_key: str | None) -> Sequence[Any]:
    """Interceptors of a channel; gRPC wants one class for each kind of call."""
    if api_key is None:
        return []
    kinds = (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)
    return [kind(api_key) for kind in kinds]


class _Adds:
    """Adds the key to a call's metadata."""

    def __init__(self, api_key: str) -> None:
        self._entry = ("authorization", f"Bearer {api_key}")

    async def _continue(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), self._entry)
        return await continuation(details._replace(metadata=metadata), request)


class _UnaryUnary(_Adds, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._continue(continuation, client_call_details, request)


class _UnaryStream(_Adds, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._continue(continuation, client_call_details, request)


class _StreamUnary(_Adds, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._continue(continuation, client_call_details, request_iterator)


class _StreamStream(_Adds, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._continue(continuation, client_call_details, request_iterator)
