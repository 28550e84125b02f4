"""HTTP's part of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where HTTP listens, and what it takes."""

    port: Annotated[int, Meta(ge=0, le=65535, description="port of HTTP; 0 takes a free one")] = 8000
    max_body_bytes: Annotated[int, Meta(ge=1, description="size of a request's body, at most")] = 8 * 1024 * 1024
    response_ttl_s: Annotated[
        float, Meta(gt=0, description="seconds for which a response of the Responses API is kept")
    ] = 30 * 86_400.0
    ping_s: Annotated[float, Meta(gt=0, description="seconds without an event after which a stream sends a ping")] = (
        15.0
    )
    keep_alive_s: Annotated[
        int,
        Meta(
            ge=1,
            description="seconds for which a connection may be idle; clients that keep theirs for less never find one"
            " closed under their request",
        ),
    ] = 120
    max_header_bytes: Annotated[int, Meta(ge=1024, description="size of a request's line and headers, at most")] = (
        64 * 1024
    )
    max_connections: Annotated[
        int,
        Meta(ge=1, le=2**31 - 1, description="connections at once, at most; more get a 503, over TLS they are closed"),
    ] = 4096
    send_timeout_s: Annotated[
        float,
        Meta(gt=0, description="seconds for a TLS handshake, a request's headers, and each 32 KiB of its body"),
    ] = 30.0
    read_timeout_s: Annotated[
        float, Meta(gt=0, description="seconds after which a client that does not read its answer is cut off")
    ] = 60.0
    backlog: Annotated[int, Meta(ge=1, description="connections that wait to be accepted, at most")] = 2048
