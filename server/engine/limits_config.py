"""Limits of each tenant, as configured."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of each tenant. 0: none."""

    concurrent_turns: Annotated[int, Meta(ge=0, description="turns of a tenant at once; 0: any number")] = 0
    turns_per_minute: Annotated[int, Meta(ge=0, description="turns of a tenant in a minute; 0: any number")] = 0
    open_sessions: Annotated[
        int, Meta(ge=0, description="sessions that a tenant opened and has not closed; 0: any number")
    ] = 0
    tokens_per_minute: Annotated[
        int,
        Meta(ge=0, description="tokens computed for a tenant in a minute, cached ones are free; 0: any number"),
    ] = 0
