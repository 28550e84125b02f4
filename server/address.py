"""A host and a port, as they stand in an address."""

from __future__ import annotations


def address(host: str, port: int) -> str:
    """``host:port``; IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
