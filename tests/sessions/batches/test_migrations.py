"""Files of every version of the batch store, opened with this one. ``released/batches-N.sql`` is never made again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sessile.sessions.batches.batch import BatchStatus
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.schema import SCHEMA_VERSION
from sessile.sessions.batches.store import BatchStore

RELEASED = Path(__file__).parent / "released"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
async def test_a_batch_of_an_older_version_is_found(version: int, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "batches.db") as database:
        database.executescript((RELEASED / f"batches-{version}.sql").read_text())
    database.close()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file-1").write_bytes(b"abc")
    store = BatchStore(tmp_path, BatchesConfig())
    file, batch = await store.file("", "file-1"), await store.batch("", "batch_1")
    assert (file.num_bytes, store.path("file-1").read_bytes()) == (3, b"abc")
    assert (batch.input_file_id, batch.completed, batch.status) == ("file-1", 1, BatchStatus.VALIDATING)
    assert await store.lines_with_results("batch_1") == {1}
    store.close()
