"""Where a server without keys may listen: on this machine only."""

from __future__ import annotations

import ipaddress
import socket

from ...sessions.errors import ConfigError
from .gate import Gate


def check_exposure(host: str, gate: Gate) -> None:
    """Raise ConfigError if others than this machine's users could reach a server that has no keys."""
    if gate.is_open and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and there is no API key: anybody could use this server and "
            "read its sessions",
            field="server.host",
            remedy="create one with `sessile keys create` (or set SESSILE_API_KEY), or keep --host 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Whether all addresses of ``host`` are this machine's own loopback ones. A name that is not known is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in found)
