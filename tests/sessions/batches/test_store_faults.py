"""A batch store that is newer, damaged, or on a full disk: an error that says what to do, and nothing half done."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessile.sessions.batches.batch import Batch, FilePurpose, LineResult, StoredFile
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.errors import UnknownFile
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.errors import StoreError

CONFIG = BatchesConfig()
FILE = StoredFile(
    file_id="file-1", tenant="", filename="f", purpose=FilePurpose.BATCH, num_bytes=3, created_at=1.0, expires_at=9.0
)
BATCH = Batch(
    batch_id="batch_1", tenant="", endpoint="/v1/responses", input_file_id="file-1", completion_window="24h",
    metadata=None, model="m", created_at=1.0, expires_at=9.0,
)  # fmt: skip


def changed(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "batches.db") as database:
        database.execute(statement)
    database.close()


async def filled(folder: Path) -> None:
    store = BatchStore(folder, CONFIG)
    await store.add_file(FILE, [b"abc"])
    await store.add_batch(BATCH)
    await store.record("batch_1", [LineResult(line=1, succeeded=True, body=b"one")])
    store.close()


async def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path)
    changed(tmp_path, "INSERT INTO _sqlite_migrations VALUES (9, 'sessile.batches', 'm002_later', '2030')")
    with pytest.raises(StoreError, match="newer version") as newer:
        BatchStore(tmp_path, CONFIG)
    assert "run that version" in (newer.value.remedy or "")


async def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    await filled(tmp_path)
    for _ in range(2):
        store = BatchStore(tmp_path, CONFIG)
        assert await store.file("", "file-1") == FILE
        assert (await store.batch("", "batch_1")).completed == 1
        assert await store.lines_with_results("batch_1") == {1}
        store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE batches SET value = CAST(replace(value, 'batch_1', 'batch_2') AS BLOB)",
        "UPDATE batches SET checksum = checksum + 1",
        "UPDATE results SET body = x'00'",
    ],
)
async def test_a_changed_row_is_found(tmp_path: Path, statement: str) -> None:
    await filled(tmp_path)
    changed(tmp_path, statement)
    store = BatchStore(tmp_path, CONFIG)
    with pytest.raises(StoreError, match="damaged"):
        await store.finish(await store.batch("", "batch_1"), 2.0)
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["file-1"]
    store.close()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    await filled(tmp_path)
    (tmp_path / "batches.db").write_bytes(b"not a database, but of some length" * 100)
    for extra in ("batches.db-wal", "batches.db-shm"):
        (tmp_path / extra).unlink(missing_ok=True)
    with pytest.raises(StoreError, match="damaged") as error:
        BatchStore(tmp_path, CONFIG)
    assert "sessions are not" in (error.value.remedy or "")


async def test_an_upload_that_finds_the_disk_full_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"ab"
        raise OSError(errno.ENOSPC, "No space left on device")

    store = BatchStore(tmp_path, CONFIG)
    with pytest.raises(StoreError, match="is full"):
        await store.add_file(FILE, pieces())
    assert list((tmp_path / "files").iterdir()) == []
    with pytest.raises(UnknownFile):
        await store.file("", "file-1")
    await store.add_file(FILE, [b"abc"])
    store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.file("", "file-1")


async def test_an_upload_that_the_database_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BatchStore(tmp_path, CONFIG)
    with monkeypatch.context() as failing:
        failing.setattr(store._database, "_insert_file", _fails)
        with pytest.raises(StoreError):
            await store.add_file(FILE, [b"abc"])
    assert list((tmp_path / "files").iterdir()) == []
    await store.add_file(FILE, [b"abc"])
    store.close()


async def test_what_an_end_that_failed_has_written_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path)
    store = BatchStore(tmp_path, CONFIG)
    batch = await store.batch("", "batch_1")
    with monkeypatch.context() as failing:
        failing.setattr(store._database, "_insert_file", _fails)
        for _ in range(3):
            with pytest.raises(StoreError):
                await store.finish(batch, 2.0)
    assert len(list((tmp_path / "files").iterdir())) == 2  # its input, and what the last attempt wrote
    ended = await store.finish(batch, 2.0)
    names = {path.name for path in (tmp_path / "files").iterdir()}
    assert names == {"file-1", ended.output_file_id}
    store.path("file-stranger").write_bytes(b"of an attempt that was the last one")
    await store.prune(3.0)
    assert {path.name for path in (tmp_path / "files").iterdir()} == names
    store.close()


def _fails(file: StoredFile) -> None:
    raise sqlite3.OperationalError("as SQLite says it")
