"""The offline lane's part of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 2**20


class BatchesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many files and batches there may be, and how many of their lines run at once."""

    concurrency: Annotated[
        int, Meta(ge=1, description="lines of batches that run at once, of all tenants together")
    ] = 8
    max_lines: Annotated[int, Meta(ge=1, description="lines of one batch, at most")] = 50_000
    max_unfinished: Annotated[int, Meta(ge=1, description="batches of a tenant that are not over, at most")] = 100
    max_file_bytes: Annotated[int, Meta(ge=1, description="size of an uploaded file, at most")] = 200 * MIB
    max_files: Annotated[int, Meta(ge=1, description="files of a tenant, at most; one more is refused")] = 1_000
    max_total_bytes: Annotated[
        int, Meta(ge=1, description="size of all files of a tenant; an upload beyond it is refused")
    ] = 2_048 * MIB
    ttl_s: Annotated[float, Meta(gt=0, description="seconds for which files, and batches that are over, are kept")] = (
        30 * 86_400.0
    )
