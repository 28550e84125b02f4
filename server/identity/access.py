"""What stands before both ports."""

from __future__ import annotations

from dataclasses import dataclass

from .certificates import Certificates
from .gate import Gate


@dataclass(frozen=True, slots=True)
class Access:
    """``certificates`` None: without TLS."""

    gate: Gate
    certificates: Certificates | None
