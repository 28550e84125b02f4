"""Who has a segment's file open, and until when: never closed under a reader, and never left open by anybody."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessile.sessions.cache.disk.segments import Segments
from sessile.sessions.cache.tiers import Block

BLOCK_BYTES, SLOTS = 4096, 4


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    """Two segments, full."""
    segments = Segments(tmp_path, BLOCK_BYTES, SLOTS)
    for slot in range(2 * SLOTS):
        segments.write(slot, block(slot))
    return segments


def block(filling: int) -> Block:
    return np.full(BLOCK_BYTES, filling, np.uint8)


def open_in(folder: Path) -> int:
    """How many files of a folder this process has open, those included that were deleted."""
    links = (os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if exists(name))
    return sum(link.startswith(str(folder)) for link in links)


def exists(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


class Held:
    """Lets a call of the system wait in its middle."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.go_on.wait(60)
        return self._work(*arguments)


def remove_all(segments: Segments) -> None:
    segments.remove_from(0)


@pytest.mark.parametrize("give_up", [Segments.close, remove_all], ids=["closed", "removed"])
def test_a_file_that_is_read_is_closed_when_the_read_ends(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give_up: Callable[[Segments], None]
) -> None:
    assert open_in(tmp_path) == 2
    held = Held(os.preadv)
    monkeypatch.setattr(os, "preadv", held)
    found = block(99)
    with ThreadPoolExecutor(1) as readers:
        reading = readers.submit(segments.read, 5, found)
        assert held.begun.wait(60)
        give_up(segments)
        assert open_in(tmp_path) == 1, "the other file is closed, this one is read"
        held.go_on.set()
        assert reading.result()
    assert (found == 5).all()
    assert open_in(tmp_path) == 0


def test_a_file_that_is_synced_is_closed_when_it_is(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(os.fdatasync)
    monkeypatch.setattr(os, "fdatasync", held)
    with ThreadPoolExecutor(1) as others:
        syncing = others.submit(segments.sync)
        assert held.begun.wait(60)
        segments.close()
        assert open_in(tmp_path) == 2
        held.go_on.set()
        syncing.result()
    assert open_in(tmp_path) == 0


@pytest.mark.parametrize("give_up", [Segments.close, remove_all], ids=["closed", "removed"])
def test_a_file_that_is_given_up_while_it_is_written_is_not_missed_by_the_next_sync(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, give_up: Callable[[Segments], None]
) -> None:
    segments.sync()
    held = Held(os.pwrite)
    monkeypatch.setattr(os, "pwrite", held)
    with ThreadPoolExecutor(1) as writers:
        writing = writers.submit(segments.write, 5, block(5))
        assert held.begun.wait(60)
        give_up(segments)
        held.go_on.set()
        writing.result()
    segments.sync()


def test_what_fails_keeps_nothing_open(segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError("as the disk says it")

    with monkeypatch.context() as failing:
        for name in ("preadv", "pwrite", "fdatasync"):
            failing.setattr(os, name, fail)
        errors = [caught(lambda: segments.read(0, block(0))), caught(segments.sync)]
        errors.append(caught(lambda: segments.write(0, block(0))))  # held with its traceback and all that it refers to
    segments.close()
    assert len(errors) == 3
    assert open_in(tmp_path) == 0


def test_files_are_opened_again(segments: Segments, tmp_path: Path) -> None:
    segments.close()
    found = block(99)
    assert segments.read(6, found)
    assert (found == 6).all()
    assert open_in(tmp_path) == 1
    segments.close()


def caught(work: Callable[[], object]) -> OSError:
    with pytest.raises(OSError, match="as the disk says it") as error:
        work()
    return error.value
