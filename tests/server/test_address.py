"""A host and a port as clients take them."""

from __future__ import annotations

from sessile.server.address import address


def test_ipv6_stands_in_brackets() -> None:
    assert [address(host, 80) for host in ("127.0.0.1", "localhost", "::1")] == [
        "127.0.0.1:80",
        "localhost:80",
        "[::1]:80",
    ]
