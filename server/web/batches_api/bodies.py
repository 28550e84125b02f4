"""What clients send to ``/v1/batches``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from ..grammar_fields import NoEffect

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
LEAST_EXPIRES_AFTER_S, MOST_EXPIRES_AFTER_S = 3_600, 2_592_000  # of a file


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/batches``."""

    input_file_id: str
    endpoint: Annotated[Endpoint, Meta(description="What each line of the file asks for.")]
    completion_window: Annotated[
        str, Meta(description='"24h", or another time from 1m to 30d: lines that have not ended by then are given up.')
    ]
    metadata: Annotated[dict[str, str] | None, Meta(description="Up to 16 pairs; told again with the batch.")] = None
    output_expires_after: NoEffect = UNSET
