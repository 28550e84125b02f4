"""Export and import over the wire, through both clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import psutil
import pytest
from left_generators import left_generators

from sessile.server.client import ModelChanged, RequestError, SamplingParams, SessionClient, StaleVersion
from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.session_pb2_grpc import SessionServiceStub

GREEDY = SamplingParams(temperature=0.0)


async def test_a_session_is_continued_from_its_file(front: Any, tmp_path: Path) -> None:
    file = tmp_path / "session.sessile"
    async with front.client(tenant="a") as client:
        session = await client.open(system="be good")
        await session.generate(messages="hi", sampling=GREEDY).wait()
        assert await session.export_to(file) == file.stat().st_size
        assert not file.with_name(f"{file.name}.unfinished").exists()
        copy, imported = await client.import_session(file)
        assert (imported.kv_tokens, imported.kv_refused) == (session.view.num_tokens, "")
        assert (copy.view.num_tokens, copy.view.system) == (session.view.num_tokens, "be good")
        turns = [one.generate(messages="more", sampling=GREEDY) for one in (session, copy)]
        assert len({(await turn.wait()).num_tokens for turn in turns}) == 1
        assert turns[0].token_ids == turns[1].token_ids
        chunks = session.export(without_kv=True)
        again, _ = await client.import_session(chunks)
        assert again.view.num_turns == 2


async def test_an_export_is_of_the_version_that_was_seen(front: Any, tmp_path: Path) -> None:
    async with front.client() as client:
        session = await client.open()
        await (await client.session(session.session_id)).generate(messages="hi").wait()
        with pytest.raises(StaleVersion):
            await session.export_to(tmp_path / "file")
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / "file.unfinished").exists()


async def test_a_damaged_file_keeps_its_error(front: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with front.client() as client, front.client(tenant="b") as stranger:
        session = await client.open()
        await session.generate(messages="hi").wait()
        await session.export_to(file)
        content = bytearray(file.read_bytes())
        with pytest.raises(RequestError) as refused:
            await stranger.import_session(file)
        assert refused.value.field == "tenant"
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(RequestError, match="byte") as refused:
            await client.import_session(file)
        assert refused.value.field == "file"
        content[-1] ^= 1
        file.write_bytes(content)
        front.engine.ready = msgspec.structs.replace(front.engine.ready, fingerprint="weights-2")
        with pytest.raises(ModelChanged) as changed:
            await client.import_session(file)
        assert changed.value.session_fingerprint == "weights-1"


async def test_a_refused_file_is_closed_at_once(front: Any, tmp_path: Path) -> None:
    """Not when its reader, stuck in the middle of it, is collected."""
    file = tmp_path / "file"
    file.write_bytes(bytes(32 * 2**20))
    async with front.client() as client:
        for _ in range(8):
            with pytest.raises(RequestError):
                await client.import_session(file)
            assert str(file) not in [each.path for each in psutil.Process().open_files()]


@pytest.mark.parametrize("kind", [OSError, asyncio.CancelledError])
async def test_what_the_chunks_raise_is_raised_to_their_owner(front: Any, kind: type[BaseException]) -> None:
    """At once: not when the server has waited long enough for more."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b""
        raise kind("the tape is torn")

    async with front.client() as client:
        with pytest.raises(kind, match="the tape is torn"):
            await client.import_session(chunks())


async def test_an_import_that_cannot_be_asked_for_is_not_begun(front: Any) -> None:
    async with front.client() as client:
        begun = client.import_session(torn := left_unread(), request_id="\ud800")
        with pytest.raises(UnicodeEncodeError):
            await begun
        await torn.aclose()


async def left_unread() -> AsyncGenerator[bytes, None]:
    raise AssertionError("it is read")
    yield b""


async def test_messages_that_are_no_import(front: Any) -> None:
    async def sent(*messages: pb.ImportRequest) -> AsyncIterator[pb.ImportRequest]:
        for message in messages:
            yield message

    header = pb.ImportRequest(header=pb.ImportHeader())
    wrong = [(), (pb.ImportRequest(chunk=b"x"),), (header, header), (header, pb.ImportRequest()), (header,)]
    async with grpc.aio.insecure_channel(front.target) as channel:
        stub = SessionServiceStub(channel)
        with left_generators() as left, pytest.raises(grpc.aio.AioRpcError):
            await stub.Import(sent(header, pb.ImportRequest(chunk=b"no file of ours"), header))
        assert not {"_requests", "_chunks", "_async_message_receiver"}.intersection(left)
        for messages in wrong:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Import(sent(*messages))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = pb.ImportRequest()
        unknown.MergeFromString(b"\xf8\x3f\x01")
        for messages in ((unknown,), (header, unknown)):
            with pytest.raises(grpc.aio.AioRpcError, match="has no field 1023"):
                await stub.Import(sent(*messages))


async def test_the_client_without_asyncio(front: Any, tmp_path: Path) -> None:
    def talk() -> int:
        with SessionClient(front.target) as client:
            session = client.open()
            session.generate(messages="hi").wait()
            session.export_to(tmp_path / "file")
            copy, _ = client.import_session(tmp_path / "file", without_kv=True)
            return copy.view.num_turns

    assert await asyncio.to_thread(talk) == 1
