"""API keys and TLS over gRPC."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from authority import Authority
from byte_text import byte_tokenizer, chatml_template
from scripted_engine import ScriptedEngine

from sessile.server.client import AsyncSessionClient
from sessile.server.identity.api_key import Scope, new_key
from sessile.server.identity.auth_config import TlsConfig
from sessile.server.identity.certificates import Certificates
from sessile.server.identity.gate import Gate
from sessile.server.identity.key_file import KeyFile
from sessile.server.identity.reload import CertificateWatch
from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub
from sessile.server.rpc.grpc_config import GrpcConfig
from sessile.server.rpc.rpc_server import RpcServer
from sessile.sessions.errors import ConfigError, Unauthenticated
from sessile.sessions.manager.manager import SessionManager
from sessile.sessions.store import SessionStore


@pytest.fixture
def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    store = SessionStore(tmp_path / "data")
    manager = SessionManager(store, ScriptedEngine(), byte_tokenizer(), chatml_template())
    yield manager
    manager.shutdown()
    store.close()


def key_of(file: KeyFile, tenant: str, scope: Scope) -> str:
    text, key = new_key(tenant, (scope,), "", 0.0)
    file.change(lambda present: [*present, key])
    return text


async def open_session(channel: grpc.aio.Channel, key: str | None, tenant: str = "") -> pb.OpenResponse:
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    return await SessionServiceStub(channel).Open(pb.OpenRequest(tenant=tenant), metadata=metadata)


async def test_calls_need_a_key_and_are_its_tenants(manager: SessionManager, tmp_path: Path) -> None:
    file = KeyFile(tmp_path)
    acme, other, metrics = (
        key_of(file, "acme", Scope.INFER),
        key_of(file, "other", Scope.INFER),
        key_of(file, "", Scope.METRICS),
    )
    server = RpcServer(manager, Gate(file, None, lambda: 0.0), GrpcConfig(port=0))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
        stub = SessionServiceStub(channel)
        session = (await open_session(channel, acme)).session
        assert session.tenant == "acme"
        for key, tenant, code in (
            (None, "", grpc.StatusCode.UNAUTHENTICATED),
            ("sk-sessile-nonsense", "", grpc.StatusCode.UNAUTHENTICATED),
            (metrics, "", grpc.StatusCode.PERMISSION_DENIED),
            (acme, "other", grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await open_session(channel, key, tenant)
            assert refused.value.code() is code
        with pytest.raises(grpc.aio.AioRpcError) as unseen:
            await stub.Get(pb.GetRequest(session_id=session.session_id), metadata=(("x-api-key", other),))
        assert unseen.value.code() is grpc.StatusCode.NOT_FOUND, "another tenant's session is as one that is not"
    await server.stop(0)


async def test_the_sdk_sends_its_key_with_every_kind_of_call(
    manager: SessionManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = KeyFile(tmp_path)
    key = key_of(file, "acme", Scope.INFER)
    server = RpcServer(manager, Gate(file, None, lambda: 0.0), GrpcConfig(port=0))
    target = f"127.0.0.1:{await server.start()}"
    async with AsyncSessionClient(target, api_key=key) as client:
        session = await client.open(system="Be brief.")
        assert session.view.tenant == "acme"
        assert (await session.generate(messages="hello").wait()).usage.prompt_tokens
        file_parts = [part async for part in session.export()]
        path = tmp_path / "session.sessile"
        path.write_bytes(b"".join(file_parts))
        imported, _ = await client.import_session(path)
        assert imported.view.tenant == "acme"
    monkeypatch.setenv("SESSILE_API_KEY", key)
    async with AsyncSessionClient(target) as client:
        assert [view.session_id async for view in client.sessions()]
    monkeypatch.delenv("SESSILE_API_KEY")
    async with AsyncSessionClient(target) as client:
        with pytest.raises(Unauthenticated) as refused:
            await client.open()
        assert refused.value.remedy
    await server.stop(0)


async def test_mutual_tls_and_a_new_certificate_without_a_restart(manager: SessionManager, tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    config = ours.issue()
    mutual = Certificates.configured(TlsConfig(cert=config.cert, key=config.key, client_ca=ours.client_ca))
    server = RpcServer(
        manager, Gate(KeyFile(tmp_path), None, lambda: 0.0), GrpcConfig(port=0), host="localhost", certificates=mutual
    )
    target = f"localhost:{await server.start()}"

    client = ours.ca.issue_cert("client@example.org")
    chain, private = b"".join(part.bytes() for part in client.cert_chain_pems), client.private_key_pem.bytes()

    def channel(root: bytes, *, with_certificate: bool) -> grpc.aio.Channel:
        pair = {"private_key": private, "certificate_chain": chain} if with_certificate else {}
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root, **pair))

    async with channel(ours.root, with_certificate=True) as trusted:
        assert (await open_session(trusted, None)).session.session_id
    async with channel(ours.root, with_certificate=False) as nameless:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await open_session(nameless, None)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    renewed = Authority(tmp_path / "renewed")
    fresh = renewed.issue()
    assert config.cert and config.key and fresh.cert and fresh.key
    config.cert.write_bytes(fresh.cert.read_bytes())
    config.key.write_bytes(fresh.key.read_bytes())
    async with channel(renewed.root, with_certificate=True) as trusting_the_new:
        assert (await open_session(trusting_the_new, None)).session.session_id
    await server.stop(0)


def test_a_changed_certificate_is_taken_over_once_and_half_a_change_is_waited_out(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificates = Certificates.configured(authority.issue())
    assert certificates is not None
    context = certificates.ssl_context()
    assert isinstance(context, ssl.SSLContext)
    watch = CertificateWatch(certificates)
    assert not watch.reload(context)
    whole = certificates.key.read_bytes()
    certificates.key.write_bytes(whole[: len(whole) // 2])
    assert not watch.reload(context)
    authority.issue()
    assert watch.reload(context)
    assert not watch.reload(context)


@pytest.mark.parametrize(
    ("broken", "field"), [("cert", "tls.cert"), ("key", "tls.cert"), ("client_ca", "tls.client_ca")]
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, broken: str, field: str) -> None:
    authority = Authority(tmp_path)
    config = authority.issue()
    files = {"cert": config.cert, "key": config.key, "client_ca": authority.client_ca}
    (tmp_path / "broken.pem").write_text("no certificate")
    with pytest.raises(ConfigError) as refused:
        Certificates.configured(TlsConfig(**(files | {broken: tmp_path / "broken.pem"})))
    assert refused.value.field == field
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        Certificates.configured(TlsConfig(**(files | {broken: tmp_path / "nowhere.pem"})))
