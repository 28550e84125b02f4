"""Sends an API key with each call."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import grpc.aio

VARIABLE = "SESSILE_API_KEY"


def api_key_or_variable(api_key: str | None) -> str | None:
    """The given key, or that of the environment; None: neither is there."""
    return api_key or os.environ.get(VARIABLE) or None


class KeyedChannel:
    """A channel for stubs, on which each call has the key in its metadata.

    gRPC's interceptors could add it too, at the price of a task for each call and of streams that nobody closes.
    """

    def __init__(self, channel: grpc.aio.Channel, api_key: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    def unary_unary(self, *method: Any, **codec: Any) -> Any:
        return partial(self._channel.unary_unary(*method, **codec), metadata=self._metadata)

    def unary_stream(self, *method: Any, **codec: Any) -> Any:
        return partial(self._channel.unary_stream(*method, **codec), metadata=self._metadata)

    def stream_unary(self, *method: Any, **codec: Any) -> Any:
        return partial(self._channel.stream_unary(*method, **codec), metadata=self._metadata)

    def stream_stream(self, *method: Any, **codec: Any) -> Any:
        return partial(self._channel.stream_stream(*method, **codec), metadata=self._metadata)
