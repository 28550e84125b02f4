"""Copies of the batches: the database and the contents that it names, of one moment, and the way back to them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessile.server import app
from sessile.sessions.batches.batch import Batch, BatchStatus, FilePurpose, LineResult, StoredFile
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.copies.batches import contents_missing
from sessile.sessions.copies.copies import DataCopies
from sessile.sessions.copies.databases import sizes_of_files
from sessile.sessions.copies.restore import Part, restore_newest
from sessile.sessions.errors import StoreError
from sessile.sessions.store import SessionStore

CONFIG = BatchesConfig()
BATCH = Batch(
    batch_id="batch_1", tenant="", endpoint="/v1/responses", input_file_id="file-in", completion_window="24h",
    metadata=None, model="m", created_at=1.0, expires_at=9.0, status=BatchStatus.IN_PROGRESS, total=2,
)  # fmt: skip


def file_of(file_id: str, content: bytes) -> StoredFile:
    return StoredFile(
        file_id=file_id,
        tenant="",
        filename="f",
        purpose=FilePurpose.BATCH,
        num_bytes=len(content),
        created_at=1.0,
        expires_at=9.0,
    )


async def filled(folder: Path) -> BatchStore:
    """A store with a batch of two lines, of which one has ended."""
    SessionStore(folder).close()
    store = BatchStore(folder, CONFIG)
    await store.add_file(file_of("file-in", b"two lines"), [b"two ", b"lines"])
    await store.add_batch(BATCH)
    await store.record("batch_1", [LineResult(line=1, succeeded=True, body=b"one")])
    return store


@pytest.fixture
def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_source: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)


@pytest.fixture(params=["links", "copies"])
def either_file_system(request: pytest.FixtureRequest) -> None:
    if request.param == "copies":
        request.getfixturevalue("no_hard_links")


@pytest.mark.usefixtures("either_file_system")
async def test_a_batch_goes_on_from_where_it_was_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = await filled(tmp_path)
    flags = ["store", "--data-dir", str(tmp_path)]
    assert await asyncio.to_thread(app.main, [*flags, "copy"]) == 0  # while the store is open
    await store.record("batch_1", [LineResult(line=2, succeeded=False, body=b"two")])
    await store.finish(await store.batch("", "batch_1"), 2.0)
    await store.delete_file("", "file-in")
    store.close()
    (tmp_path / "batches.db").write_bytes(b"not a database, but of some length" * 100)
    with pytest.raises(StoreError, match="sessile store restore --only batches"):
        BatchStore(tmp_path, CONFIG)
    assert await asyncio.to_thread(app.main, [*flags, "check"]) == 1
    assert await asyncio.to_thread(app.main, [*flags, "restore"]) == 0
    assert "lines that ended since then are run again" in capsys.readouterr().out
    assert await asyncio.to_thread(app.main, [*flags, "check"]) == 0
    store = BatchStore(tmp_path, CONFIG)
    batch = await store.batch("", "batch_1")
    assert (batch.status, batch.completed, batch.failed) == (BatchStatus.IN_PROGRESS, 1, 0)
    assert await store.lines_with_results("batch_1") == {1}
    assert store.path("file-in").read_bytes() == b"two lines"
    assert [file.file_id for file in await store.files("", None, after=None, limit=9, newest_first=True)] == ["file-in"]
    ended = await store.finish(batch, 3.0)
    assert ended.output_file_id is not None
    assert store.path(ended.output_file_id).read_bytes() == b"one\n"
    store.close()
    (copy,) = DataCopies(tmp_path).all()
    assert contents_missing(copy) == [], "a copy is not used up"


async def test_a_copy_made_while_files_come_and_go_has_the_content_of_each_file_it_names(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    copies = DataCopies(tmp_path)
    contents: dict[str, bytes] = {"file-in": b"two lines"}
    for _ in range(4):
        copying = asyncio.create_task(asyncio.to_thread(copies.make))
        turns = 0
        while not copying.done() or turns < 8:
            name, content = f"file-{len(contents)}", b"x" * len(contents)
            contents[name] = content
            await store.add_file(file_of(name, content), [content])
            if turns % 3:
                await store.delete_file("", name)
            turns += 1
        made = copying.result()
        known = sizes_of_files(made / "batches.db")
        assert {path.name: path.read_bytes() for path in (made / "files").iterdir()} == {
            name: contents[name] for name in known
        }
    store.close()


async def test_batches_come_back_and_sessions_stay(tmp_path: Path) -> None:
    (await filled(tmp_path)).close()
    DataCopies(tmp_path).make()
    before = (tmp_path / "sessions.db").stat().st_ino
    source, aside = restore_newest(tmp_path, parts=[Part.BATCHES])
    assert source in DataCopies(tmp_path).all()
    assert (tmp_path / "sessions.db").stat().st_ino == before
    assert sorted(path.name for path in aside.iterdir() if "-" not in path.name) == ["batches.db", "files"]


async def test_a_copy_without_batches_leaves_those_that_came_later(tmp_path: Path) -> None:
    SessionStore(tmp_path).close()
    DataCopies(tmp_path).make()
    (await filled(tmp_path)).close()
    restore_newest(tmp_path)
    assert contents_missing(tmp_path) == []
    with pytest.raises(StoreError, match="no sound copy of batches"):
        restore_newest(tmp_path, parts=[Part.BATCHES])


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Path]:
    """A data folder where the content of one of two files is not there."""
    store = asyncio.run(_with_a_second_file(tmp_path))
    (tmp_path / "files" / "file-lost").unlink()
    yield tmp_path
    store.close()


async def _with_a_second_file(folder: Path) -> BatchStore:
    store = await filled(folder)
    await store.add_file(file_of("file-lost", b"lost"), [b"lost"])
    return store


def test_a_lost_content_is_said_and_the_rest_is_copied(lost: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = DataCopies(lost).make()
    assert "file-lost" in caplog.text
    assert [path.name for path in (copy / "files").iterdir()] == ["file-in"]
    assert app.main(["store", "--data-dir", str(lost), "check"]) == 1
