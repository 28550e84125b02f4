"""Sessions that leave one server as a file and go on in another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from byte_text import byte_tokenizer
from manager_bench import Bench
from scripted_engine import ScriptedEngine

from sessile.server.engine.cache_messages import ImportPath
from sessile.sessions.errors import CapacityError, ModelChanged, RequestError, SessionNotFound, StaleVersion
from sessile.sessions.keeping import Persistence, PersistencePolicy
from sessile.sessions.manager import (
    CloseRequest,
    ExportRequest,
    Imported,
    ImportSession,
    ListSessions,
    RollbackRequest,
)
from sessile.sessions.session import AtToken


async def exported(bench: Bench, session_id: str, **fields: Any) -> bytes:
    return b"".join([piece async for piece in bench.manager.export(ExportRequest(session_id=session_id, **fields))])


async def pieces_of(file: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(file), size):
        yield file[start : start + size]


async def imported(bench: Bench, file: bytes, **fields: Any) -> Imported:
    return await bench.manager.import_(ImportSession(**fields), pieces_of(file))


@pytest.fixture
async def other(tmp_path: Path, bench: Bench) -> AsyncIterator[Bench]:
    """Another server, with the first one's key."""
    other = Bench(tmp_path / "other")
    other.folder.mkdir()
    session = await bench.open()
    await exported(bench, session.session_id)
    await bench.manager.close(CloseRequest(session_id=session.session_id))
    (other.folder / "export.key").write_bytes((bench.folder / "export.key").read_bytes())
    other.start()
    yield other
    other.stop()


async def test_a_session_goes_on_as_if_it_had_stayed(bench: Bench, other: Bench) -> None:
    policy = PersistencePolicy(Persistence.ON_SUSPEND)
    session = await bench.open(system="be good", persistence=policy, tenant="a")
    await bench.say(session.session_id, "hi", tenant="a")
    await bench.say(session.session_id, "more", tenant="a")
    file = await exported(bench, session.session_id, tenant="a")
    there = await imported(other, file, tenant="a")
    assert there.session.session_id != session.session_id
    assert (there.session.num_turns, there.session.system, there.session.persistence) == (2, "be good", policy)
    assert (there.kv_tokens, there.kv_refused) == (there.session.num_tokens, "")
    assert await other.text(there.session.session_id) == await bench.text(session.session_id)
    here = await bench.say(session.session_id, "go on", tenant="a")
    assert (await other.say(there.session.session_id, "go on", tenant="a"))[0] == here[0]
    assert other.engine.submitted[-1].token_ids == bench.engine.submitted[-1].token_ids
    assert not list((other.folder / "transfer").iterdir())
    assert not list((bench.folder / "transfer").iterdir())


async def test_an_empty_session_and_one_cut_in_mid_answer(bench: Bench, other: Bench) -> None:
    empty = await bench.open(system="be good")
    assert (await imported(other, await exported(bench, empty.session_id))).session.num_tokens == 0
    session = await bench.open()
    _, finished = await bench.say(session.session_id, "hi")
    await bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=AtToken(finished.num_tokens - 3)))
    there = (await imported(other, await exported(bench, session.session_id))).session
    assert (there.num_turns, there.num_tokens) == (0, finished.num_tokens - 3)
    await bench.say(session.session_id)
    await other.say(there.session_id)
    assert other.engine.submitted[-1].token_ids == bench.engine.submitted[-1].token_ids


async def test_the_log_alone_is_enough(bench: Bench, other: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    whole, log = await exported(bench, session.session_id), await exported(bench, session.session_id, without_kv=True)
    assert len(log) < len(whole)
    for file, fields in ((log, {}), (whole, {"without_kv": True})):
        there = await imported(other, file, **fields)
        assert (there.kv_tokens, there.kv_refused) == (0, "")
    other.engine.will_answer(ImportPath, RequestError("another layout", field="file"))
    there = await imported(other, whole)
    assert there.kv_tokens == 0
    assert "another layout" in there.kv_refused
    assert await other.text(there.session.session_id) == await bench.text(session.session_id)


async def test_another_model_or_tokenizer_is_refused_with_both_fingerprints(bench: Bench, other: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    file = await exported(bench, session.session_id)
    other.engine = ScriptedEngine(fingerprint="weights-2")
    other.restart()
    with pytest.raises(ModelChanged) as refused:
        await imported(other, file)
    assert (refused.value.session_fingerprint, refused.value.server_fingerprint) == ("weights-1", "weights-2")
    other.engine = ScriptedEngine(vocab_size=259)
    other.tokenizer = byte_tokenizer("<think>")
    other.restart()
    with pytest.raises(ModelChanged, match="tokenizer"):
        await imported(other, file)
    assert (await other.manager.list(ListSessions())).sessions == ()


async def test_a_file_is_bound_to_its_tenant_and_its_key(bench: Bench, other: Bench, tmp_path: Path) -> None:
    session = await bench.open(tenant="a")
    await bench.say(session.session_id, "hi", tenant="a")
    file = await exported(bench, session.session_id, tenant="a")
    with pytest.raises(RequestError) as refused:
        await imported(other, file, tenant="b")
    assert refused.value.field == "tenant"
    stranger = Bench(tmp_path / "stranger")
    stranger.start()
    with pytest.raises(RequestError) as refused:
        await imported(stranger, file, tenant="a")
    assert refused.value.field == "file.signature"
    stranger.stop()
    with pytest.raises(SessionNotFound):
        await exported(bench, session.session_id, tenant="b")
    with pytest.raises(StaleVersion):
        await exported(bench, session.session_id, tenant="a", expected_version=1)


async def test_an_import_that_fails_leaves_nothing(bench: Bench, other: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    file = await exported(bench, session.session_id)
    for broken in (b"", file[: len(file) // 2], file[:-1], file + b"x", b"\0" + file[1:]):
        with pytest.raises(RequestError) as refused:
            await imported(other, broken, request_id="once")
        assert refused.value.field == "file"

    async def breaks_off() -> AsyncIterator[bytes]:
        yield file[:100]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await other.manager.import_(ImportSession(), breaks_off())
    assert (await other.manager.list(ListSessions())).sessions == ()
    assert not list((other.folder / "transfer").iterdir())
    assert (await imported(other, file, request_id="once")).session.num_turns == 1


async def test_the_same_import_is_one_session(bench: Bench, other: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    file = await exported(bench, session.session_id)
    first = await imported(other, file, request_id="i")
    other.restart()
    assert await imported(other, file, request_id="i") == first
    assert len((await other.manager.list(ListSessions())).sessions) == 1
    await bench.say(session.session_id, "more")
    with pytest.raises(RequestError, match="another request"):
        await imported(other, await exported(bench, session.session_id), request_id="i")
    assert (await imported(other, file)).session.session_id != first.session.session_id


async def test_there_must_be_room(bench: Bench, other: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    file = await exported(bench, session.session_id)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(CapacityError) as refused:
        await imported(other, file)
    assert refused.value.field == "file.header.kv_bytes"
    monkeypatch.undo()
    small = ScriptedEngine(context_length=8)
    other.engine = small
    other.restart()
    with pytest.raises(RequestError, match="context"):
        await imported(other, file)
