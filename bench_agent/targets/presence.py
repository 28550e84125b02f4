"""Whether anybody listens at an address."""

from __future__ import annotations

import asyncio

from .address import Address

_DEFAULT_PORTS = {"http": 80, "https": 443}
_TIMEOUT_S = 5.0


async def listens(address: Address) -> bool:
    """Whether a connection is taken there now."""
    port = address.port or _DEFAULT_PORTS[address.scheme]
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address.host, port), _TIMEOUT_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
