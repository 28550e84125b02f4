"""A data folder with a batch that is under way, and a file system without hard links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sessile.sessions.batches.batch import Batch, BatchStatus, FilePurpose, LineResult, StoredFile
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.store import BatchStore
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


def without_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_source: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
