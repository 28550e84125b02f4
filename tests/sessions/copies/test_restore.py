"""A restore that the disk fails in its middle leaves everything as it was, whichever step it fails."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filled_batches import filled, without_hard_links

from sessile.sessions.copies.batches import contents_missing
from sessile.sessions.copies.copies import DataCopies
from sessile.sessions.copies.databases import require_sound
from sessile.sessions.copies.restore import restore_newest
from sessile.sessions.errors import StoreError
from sessile.sessions.store.moves import is_begun

DATABASES = ("sessions.db", "batches.db")


class FailingDisk:
    """Counts what changes or syncs the disk, and fails one of these, counted from 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before_each: Callable[[], None]) -> None:
        self._failing, self._done = -1, 0
        self._before_each, self._mkdir = before_each, os.mkdir
        for owner, name in ((os, "fsync"), (os, "mkdir"), (shutil, "copyfile"), (Path, "replace")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def is_survived(self, work: Callable[[], object], *, failing: int) -> bool:
        self._failing, self._done = failing, 0
        try:
            work()
        except StoreError as error:
            return os.strerror(errno.ENOSPC) not in str(error)
        return True

    def _counted(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def fail_or_work(*arguments: Any, **named: Any) -> Any:
            if work is self._mkdir and Path(arguments[0]).exists():
                return work(*arguments, **named)  # which changes nothing
            self._before_each()
            self._done += 1
            if self._done - 1 == self._failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return work(*arguments, **named)

        return fail_or_work


def state_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("has_links", [True, False])
def test_a_restore_that_fails_at_any_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    store = asyncio.run(filled(tmp_path))
    DataCopies(tmp_path).make()
    store.close()
    for name in DATABASES:
        (tmp_path / name).write_bytes(b"damaged")
        (tmp_path / f"{name}-wal").write_bytes(b"of the damaged one")
    (tmp_path / "files" / "file-in").unlink()
    (tmp_path / "files" / "file-new").write_bytes(b"new")
    before = state_of(tmp_path)
    if not has_links:
        without_hard_links(monkeypatch)

    def each_database_is_there() -> None:
        there = all((tmp_path / name).exists() for name in DATABASES)
        assert there or is_begun(tmp_path), "a start now would make an empty one"

    disk = FailingDisk(monkeypatch, each_database_is_there)
    failures = 0
    while not disk.is_survived(lambda: restore_newest(tmp_path), failing=failures):
        assert state_of(tmp_path) == before
        assert not list(tmp_path.glob("damaged-*")), "nothing was moved"
        failures += 1
    (aside,) = tmp_path.glob("damaged-*")
    assert failures > 10
    assert contents_missing(tmp_path) == []
    for name in DATABASES:
        require_sound(tmp_path / name)
        assert (aside / name).read_bytes() == b"damaged"
        assert (aside / f"{name}-wal").read_bytes() == b"of the damaged one"
    assert (aside / "files" / "file-new").read_bytes() == b"new"
    assert not list(tmp_path.glob("*.new"))


def test_two_restores_in_one_second_keep_what_was_there_apart(tmp_path: Path) -> None:
    asyncio.run(filled(tmp_path)).close()
    DataCopies(tmp_path).make()
    first, second = (restore_newest(tmp_path, lambda: 1_800_000_000.0).aside for _ in range(2))
    assert first != second
    assert (first / "sessions.db").exists()
    assert (second / "sessions.db").exists()


@pytest.mark.parametrize("has_links", [True, False])
def test_what_is_copied_and_what_is_restored_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    store = asyncio.run(filled(tmp_path))
    synced = {(tmp_path / "files" / "file-in").stat().st_ino}
    sync = os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    if not has_links:
        without_hard_links(monkeypatch)
    copy = DataCopies(tmp_path).make()
    store.close()
    for path in (copy.parent, copy, *copy.rglob("*")):
        assert path.stat().st_ino in synced, path
    restore_newest(tmp_path)
    for path in (tmp_path, tmp_path / "files", *(tmp_path / name for name in (*DATABASES, "files/file-in"))):
        assert path.stat().st_ino in synced, path
