"""gRPC's part of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_LONGEST_S = 1_000_000.0  # gRPC counts milliseconds in 32 bits


class GrpcConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where gRPC listens, and what it takes."""

    port: Annotated[int, Meta(ge=0, le=65535, description="port of gRPC; 0 takes a free one")] = 50051
    max_message_bytes: Annotated[
        int, Meta(ge=1024, le=2**30, description="size of a message of a request, at most")
    ] = 16 * 1024 * 1024
    max_metadata_bytes: Annotated[
        int, Meta(ge=1024, le=2**30, description="size of a call's metadata, at most; each entry counts 32 bytes more")
    ] = 16 * 1024
    max_connections: Annotated[
        int, Meta(ge=1, le=2**31 - 1, description="connections at once, at most; more are closed at once")
    ] = 4096
    max_streams: Annotated[
        int,
        Meta(ge=1, le=2**31 - 1, description="calls on one connection at once, at most; more wait at their client"),
    ] = 1024
    send_timeout_s: Annotated[
        float,
        Meta(gt=0, le=_LONGEST_S, description="seconds for opening a connection, and for each message of a request"),
    ] = 60.0
    read_timeout_s: Annotated[
        float,
        Meta(gt=0, description="seconds after which the turn, watch or export of a client that does not read is ended"),
    ] = 60.0
    idle_s: Annotated[
        float, Meta(gt=0, le=_LONGEST_S, description="seconds for which a connection may be without calls")
    ] = 1800.0
    keepalive_s: Annotated[
        float,
        Meta(gt=0, le=_LONGEST_S, description="seconds of silence after which a client is asked for a sign of life"),
    ] = 60.0
    keepalive_timeout_s: Annotated[
        float, Meta(gt=0, le=_LONGEST_S, description="seconds for that sign, after which its connection is closed")
    ] = 20.0
    ping_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=30,
            description="seconds between pings of a client, at least; one that goes on pinging faster is cut off;"
            " Sessile's own clients ping every 30 s",
        ),
    ] = 10.0
