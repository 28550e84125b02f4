"""Ids that nobody can guess: who knows one was told it."""

from __future__ import annotations

import secrets

_RANDOM_BYTES = 16


def unguessable(prefix: str) -> str:
    """``prefix`` and 128 bits of the system's random source, as 32 hexadecimal digits.

    The source has no state in this process: processes that are copies of each other draw different ids.
    """
    return prefix + secrets.token_hex(_RANDOM_BYTES)
