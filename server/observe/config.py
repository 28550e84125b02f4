"""What the server tells about its turns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ObserveConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Misses, the trace log and spans."""

    miss_text: Annotated[
        Literal["redacted", "on"], Meta(description="whether an explained miss shows the text that differs")
    ] = "redacted"
    trace_log: Annotated[
        Path | None, Meta(description="folder of a log of all turns, which prompt-lint and bench-agent read")
    ] = None
    trace_content: Annotated[
        Literal["off", "hashed", "on"],
        Meta(description="what the trace log says of texts: their length, hashes of their words, or all"),
    ] = "hashed"
    trace_file_bytes: Annotated[int, Meta(ge=4096, description="size of one file of the trace log, about")] = 64 << 20
    trace_files: Annotated[int, Meta(ge=1, description="files of the trace log that are kept")] = 16
    metric_aliases: Annotated[
        bool, Meta(description="also show metrics under the names that vLLM and SGLang have for them")
    ] = False
    otlp_endpoint: Annotated[
        str, Meta(description="where spans are sent (OTLP over HTTP, such as http://localhost:4318); empty: nowhere")
    ] = ""
