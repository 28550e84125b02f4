"""``sessile serve`` with certificates: both ports, clients that must show one, and a renewal without a restart."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from authority import Authority
from served_llama import make_served_llama
from server_process import ServerProcess

from sessile.server.client import NO_RETRIES, ConnectionLost, SamplingParams, SessionClient

pytestmark = pytest.mark.timeout(300)
FLAGS = ("--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "16MiB")
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@dataclass(frozen=True)
class Caller:
    """Who trusts ``root`` and shows a certificate of ``shown``, or none."""

    root: Authority
    shown: Authority | None

    @property
    def pair(self) -> tuple[bytes, bytes] | None:
        """Certificate and key."""
        if self.shown is None:
            return None
        issued = self.shown.ca.issue_cert("client@example.org")
        return b"".join(part.bytes() for part in issued.cert_chain_pems), issued.private_key_pem.bytes()

    def context(self, folder: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.root.root.decode())
        if (pair := self.pair) is not None:
            shown = folder / "shown.pem"
            shown.write_bytes(b"".join(pair))
            context.load_cert_chain(shown)
        return context

    def over_http(self, server: ServerProcess, folder: Path) -> int:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
        with httpx.Client(verify=self.context(folder), timeout=60) as client:
            return client.post(f"{server.url}/v1/chat/completions", json=body).status_code

    def over_grpc(self, server: ServerProcess) -> SessionClient:
        certificate, key = self.pair or (None, None)
        credentials = grpc.ssl_channel_credentials(self.root.root, key, certificate)
        return SessionClient(server.grpc_target, credentials=credentials, retry=NO_RETRIES)

    def turn_over_grpc(self, server: ServerProcess) -> int:
        with self.over_grpc(server) as client, client.open() as session:
            return session.generate(messages="hi", sampling=SHORT).wait().usage.completion_tokens


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def server(tmp_path: Path, ours: Authority) -> Iterator[ServerProcess]:
    model = make_served_llama(tmp_path / "tiny-llama")
    issued = ours.issue()
    flags = ("--tls-cert", str(issued.cert), "--tls-key", str(issued.key), "--tls-client-ca", str(ours.client_ca))
    context = Caller(ours, ours).context(tmp_path)
    with ServerProcess(tmp_path / "data", "--model", str(model), *FLAGS, *flags, tls=context) as server:
        yield server


def test_a_server_with_certificates(server: ServerProcess, ours: Authority, tmp_path: Path) -> None:
    renewed, ourself = Authority(tmp_path / "renewed"), Caller(ours, ours)
    assert ourself.over_http(server, tmp_path) == 200
    assert ourself.turn_over_grpc(server) == 4

    for stranger in (Caller(ours, None), Caller(ours, renewed), Caller(renewed, ours)):
        with pytest.raises(httpx.TransportError):
            stranger.over_http(server, tmp_path)
        with pytest.raises(ConnectionLost):
            stranger.turn_over_grpc(server)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{server.http_port}/health")
    with SessionClient(server.grpc_target, retry=NO_RETRIES) as in_the_clear, pytest.raises(ConnectionLost):
        in_the_clear.open()

    with ourself.over_grpc(server) as before, before.open() as session:
        session.generate(messages="hi", sampling=SHORT).wait()
        fresh = renewed.issue()
        for name in ("cert.pem", "key.pem"):
            (ours.folder / name).write_bytes((fresh.cert.parent / name).read_bytes())  # type: ignore[union-attr]
        assert Caller(renewed, ours).turn_over_grpc(server) == 4
        with pytest.raises(ConnectionLost):
            ourself.turn_over_grpc(server)
        assert session.generate(messages="more", sampling=SHORT).wait().turn == 2  # its connection goes on
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            assert Caller(renewed, ours).over_http(server, tmp_path) == 200
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"HTTP has not taken the renewed certificate over:\n{server.tail()}")
    with pytest.raises(httpx.TransportError):
        ourself.over_http(server, tmp_path)
    assert server.stop() == 0
