"""What is opened is closed by its owner: tasks, files and connections, where their work ends early or fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from manager_bench import Bench, user

from sessile.server.engine.cache_messages import RetainOutcome, RetainPath
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.database import BatchDatabase
from sessile.sessions.batches.service import Batches
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.batches.worker import LineAnswer
from sessile.sessions.errors import StoreError
from sessile.sessions.export import writer
from sessile.sessions.keeping import Retain
from sessile.sessions.manager import ExportRequest, HintRequest, ImportSession, transfer
from sessile.sessions.store import SessionStore
from sessile.sessions.store.store_file import StoreFile

LINE = b'{"custom_id": "%d", "method": "POST", "url": "/v1/responses", "body": {}}\n'


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "data")
    bench.start()
    yield bench
    bench.stop()


def open_files(folder: Path) -> list[str]:
    """What this process has open below a folder."""
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(folder))]


async def test_batches_that_are_closed_leave_no_task_and_no_file(tmp_path: Path) -> None:
    runs = asyncio.Event()

    async def never(tenant: str, endpoint: str, body: bytes) -> LineAnswer:
        runs.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    store = BatchStore(tmp_path, BatchesConfig(concurrency=2))
    batches = Batches(store, BatchesConfig(concurrency=2), lambda: 1000.0, max_line_bytes=1000)
    content = b"".join(LINE % number for number in range(9))
    file = await batches.add_file("", "in", len(content), [content])
    await batches.create(
        "", endpoint="/v1/responses", input_file_id=file.file_id, completion_window="24h", model="m", metadata=None
    )
    await batches.start(never)
    await runs.wait()
    assert open_files(tmp_path / "files")
    await batches.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert open_files(tmp_path / "files") == []
    store.close()
    assert open_files(tmp_path) == []


async def test_care_that_is_closed_leaves_no_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that was asked last, nor those that it waits for."""
    asked = asyncio.Event()

    async def hangs(path: RetainPath) -> RetainOutcome:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    session = await bench.open()
    await bench.manager.hint(HintRequest(session_id=session.session_id, hint=Retain(priority=1)))
    monkeypatch.setattr(bench.engine, "retain", hangs)
    await bench.say(session.session_id, "hi")
    await bench.say(session.session_id, "and")
    await asked.wait()
    await bench.manager.care.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_export_that_nobody_reads_to_its_end_closes_its_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "KV_PIECE", 1)
    _, end = await bench.complete([user("hi")])
    pieces = bench.manager.export(ExportRequest(session_id=end.session_id))
    async for _ in pieces:
        if open_files(bench.folder / "transfer"):
            break
    await pieces.aclose()
    assert open_files(bench.folder / "transfer") == []
    assert list((bench.folder / "transfer").iterdir()) == []


async def test_an_import_that_is_cancelled_ends_its_thread_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    _, end = await bench.complete([user("hi")])
    file = b"".join([piece async for piece in bench.manager.export(ExportRequest(session_id=end.session_id))])
    feeding, go_on, fed = threading.Event(), threading.Event(), threading.Event()
    feed = transfer.FileAssembler.feed

    def slowly(assembler: transfer.FileAssembler, piece: bytes) -> None:
        feeding.set()
        go_on.wait(30)
        feed(assembler, piece)
        fed.set()

    async def pieces() -> AsyncIterator[bytes]:
        yield file

    monkeypatch.setattr(transfer.FileAssembler, "feed", slowly)
    importing = asyncio.ensure_future(bench.manager.import_(ImportSession(), pieces()))
    while not feeding.is_set():
        await asyncio.sleep(0.001)
    importing.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await importing
    assert fed.is_set()
    assert open_files(bench.folder / "transfer") == []


@pytest.mark.parametrize("database", [StoreFile, BatchDatabase])
def test_a_connection_that_cannot_be_used_is_closed(tmp_path: Path, database: type) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database, but of some length" * 100)
    with pytest.raises(StoreError) as kept:
        database(tmp_path / "x.db").prepare()
    assert kept.value
    assert open_files(tmp_path) == []


def test_a_store_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: StoreFile) -> None:
        raise sqlite3.OperationalError("as SQLite says it")

    before = set(threading.enumerate())
    monkeypatch.setattr(StoreFile, "forbid_writes", fails)
    with pytest.raises(sqlite3.OperationalError):
        SessionStore(tmp_path)
    assert set(threading.enumerate()) <= before
    assert open_files(tmp_path) == []
    monkeypatch.undo()
    SessionStore(tmp_path).close()
    assert open_files(tmp_path) == []
