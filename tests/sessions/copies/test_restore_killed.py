"""A restore that is killed, at whatever step: the next start finds what was there before, or what the copy had."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from filled_batches import CONFIG, file_of, filled, without_hard_links

from sessile.sessions.batches.batch import LineResult
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.copies.batches import contents_missing
from sessile.sessions.copies.copies import DataCopies
from sessile.sessions.copies.restore import restore_newest
from sessile.sessions.errors import StoreError
from sessile.sessions.store import SessionStore
from sessile.sessions.store.moves import JOURNAL_NAME, is_begun
from sessile.sessions.store.tool_latencies import StoredLatency

# What changes a folder, as the interpreter tells its audit hooks: all of it, whoever does it.
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
OLD, NEW = "what was there", "the copy's"


def killed(work: Callable[[Path], object], folder: Path, *, before_change: int) -> bool:
    """Do ``work`` on ``folder`` in a process that is killed before one of its changes, counted from 0.

    False: it ended before.
    """
    process = os.fork()
    if process == 0:
        left = before_change

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in CHANGES or (event == "open" and arguments[2] & WRITING):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        sys.addaudithook(count)
        try:
            work(folder)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


async def changed_since_its_copy(folder: Path) -> None:
    """A data folder of a server that was killed: its latest changes are in write-ahead logs, and not in the copy."""
    data = folder.with_name("running")
    batches = await filled(data)
    DataCopies(data).make()
    with closing(SessionStore(data)) as sessions, closing(batches):
        await sessions.keep_tool_latencies([StoredLatency(tenant="", tool="later", sketch=b"s", used_at=1.0)])
        await batches.add_file(file_of("file-later", b"later"), [b"later"])
        await batches.record("batch_1", [LineResult(line=2, succeeded=True, body=b"two")])
        shutil.copytree(data, folder)
    assert (folder / "sessions.db-wal").stat().st_size > 0
    assert (folder / "batches.db-wal").stat().st_size > 0


async def found_by_a_start(folder: Path) -> tuple[str, str]:
    """Sessions and batches, each as they were or as the copy has them; no third thing."""
    with closing(SessionStore(folder)) as store, closing(BatchStore(folder, CONFIG)) as batch_store:
        tools = [latency.tool for latency in await store.tool_latencies()]
        lines = await batch_store.lines_with_results("batch_1")
    names = {path.name for path in (folder / "files").iterdir()}
    assert contents_missing(folder) == []
    sessions = {(): NEW, ("later",): OLD}[tuple(tools)]
    batches = {(1,): NEW, (1, 2): OLD}[tuple(sorted(lines))]
    assert names == ({"file-in"} if batches == NEW else {"file-in", "file-later"})
    return sessions, batches


def test_a_kill_at_any_step_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_hard_links(monkeypatch)  # more steps: contents are copied one by one
    original = tmp_path / "data"
    asyncio.run(changed_since_its_copy(original))
    found: list[str] = []
    while killed(restore_newest, folder := copied(original, len(found)), before_change=len(found)):
        sessions, batches = asyncio.run(found_by_a_start(folder))
        assert sessions == batches, f"killed before change {len(found)}"
        assert not is_begun(folder)
        found.append(sessions)
        shutil.rmtree(folder)
    assert found == sorted(found, reverse=True), "old until one moment, and new from then on"
    assert found.count(OLD) > 10
    assert found.count(NEW) > 10
    assert asyncio.run(found_by_a_start(folder)) == (NEW, NEW)


def test_a_start_that_is_killed_while_it_finishes_a_restore_leaves_it_to_the_next(tmp_path: Path) -> None:
    begun = begun_restore(tmp_path)
    kills = 0
    while killed(start, folder := copied(begun, kills), before_change=kills):
        assert asyncio.run(found_by_a_start(folder)) == (NEW, NEW)
        kills += 1
        shutil.rmtree(folder)
    assert kills > 7, "once for each move, at least"
    assert asyncio.run(found_by_a_start(folder)) == (NEW, NEW)
    (aside,) = folder.glob("damaged-*")
    names = {path.name for path in aside.iterdir()}
    assert {"sessions.db", "sessions.db-wal", "batches.db", "batches.db-wal", "files"} <= names


def test_nothing_is_copied_until_it_is_finished(tmp_path: Path) -> None:
    folder = begun_restore(tmp_path)
    with pytest.raises(StoreError, match=r"a restore of .* was interrupted \(start the server"):
        DataCopies(folder).make()
    assert restore_newest(folder).sources
    assert len(list(folder.glob("damaged-*"))) == 2  # what was there, and what the first restore brought
    assert asyncio.run(found_by_a_start(folder)) == (NEW, NEW)


def test_moves_that_cannot_be_made_are_told(tmp_path: Path) -> None:
    folder = begun_restore(tmp_path)
    for fresh in folder.glob("*.new"):
        shutil.rmtree(fresh) if fresh.is_dir() else fresh.unlink()
    with pytest.raises(StoreError, match=rf"{JOURNAL_NAME} says could not be brought to its end") as told:
        SessionStore(folder)
    assert "make the moves that stand there by hand" in str(told.value)


def begun_restore(tmp_path: Path) -> Path:
    """A folder whose restore was killed right behind the moment from which on it counts."""
    original = tmp_path / "data"
    asyncio.run(changed_since_its_copy(original))
    for change in range(1000):
        folder = copied(original, change)
        assert killed(restore_newest, folder, before_change=change)
        if is_begun(folder):
            return folder.rename(tmp_path / "begun")
        shutil.rmtree(folder)
    raise AssertionError("it never counted")


def start(folder: Path) -> None:
    SessionStore(folder).close()


def copied(folder: Path, number: int) -> Path:
    return Path(shutil.copytree(folder, folder.with_name(f"killed-{number}")))
