"""How far the KV of a session may go."""

from __future__ import annotations

import enum


class Lifetime(enum.StrEnum):
    """How far the KV of a session may go."""

    DURABLE = "durable"  # to where it outlives the process, and to other servers
    PROCESS = "process"  # to this process's memory alone
