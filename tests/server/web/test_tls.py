"""TLS over HTTP: clients must show a certificate where one is asked for, and a renewed one is taken over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from authority import Authority

from sessile.server.config import ServerConfig
from sessile.server.front import serve_http
from sessile.server.identity import reload
from sessile.server.identity.auth_config import TlsConfig
from sessile.server.identity.certificates import Certificates
from sessile.server.web.http_listener import HttpListener


def trusting(authority: Authority, *, shows: Path | None) -> ssl.SSLContext:
    """A client's context; ``shows``: a PEM file with its certificate and key."""
    context = ssl.create_default_context(cadata=authority.root.decode())
    if shows is not None:
        context.load_cert_chain(shows)
    return context


async def health(port: int, context: ssl.SSLContext) -> int:
    """The status, over a connection of its own."""
    async with httpx.AsyncClient(verify=context) as client:
        return (await client.get(f"https://localhost:{port}/health")).status_code


async def test_mutual_tls_and_a_new_certificate_without_a_restart(
    stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "RELOAD_S", 0.01)
    ours, renewed = Authority(tmp_path), Authority(tmp_path / "renewed")
    config = ours.issue()
    assert config.cert and config.key
    shown = tmp_path / "client.pem"
    ours.ca.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(shown)
    mutual = Certificates.configured(TlsConfig(cert=config.cert, key=config.key, client_ca=ours.client_ca))
    listener = socket.create_server(("localhost", 0))
    port = listener.getsockname()[1]
    async with serve_http(stage.parts(), HttpListener(listener, 100, 30.0), ServerConfig(), mutual):
        assert await health(port, trusting(ours, shows=shown)) == 200
        with pytest.raises(httpx.TransportError):
            await health(port, trusting(ours, shows=None))
        with pytest.raises(httpx.ConnectError):
            await health(port, trusting(renewed, shows=shown))
        fresh = renewed.issue()
        assert fresh.cert and fresh.key
        config.cert.write_bytes(fresh.cert.read_bytes())
        config.key.write_bytes(fresh.key.read_bytes())
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.ConnectError):
                    assert await health(port, trusting(renewed, shows=shown)) == 200
                    break
                await asyncio.sleep(0.02)
        with pytest.raises(httpx.TransportError):
            await health(port, trusting(renewed, shows=None))
