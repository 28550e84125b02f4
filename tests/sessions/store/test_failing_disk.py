"""The store on a disk that is really full, and what it waits for before it says that something is kept."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Faults
from set_clock import SetClock

from sessile.sessions.errors import StoreUnavailable
from sessile.sessions.session import START, EntryKind, ModelIdentity, NewEntry, Session, SessionState
from sessile.sessions.store import Change, SessionStore
from sessile.sessions.store.health import LONGEST_PROBE_PAUSE_S, StoreHealth

ROOT = Path(__file__).resolve().parents[3]
MODEL = ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t")
TOKENS = tuple(range(2000))


def new_session(session_id: str) -> Session:
    return Session(
        session_id=session_id, tenant="", version=1, state=SessionState.OPEN, place=START, model=MODEL, system="s",
        tools=(), parent_session_id=None, created_at=1.0, updated_at=1.0,
    )  # fmt: skip


async def add_turn(store: SessionStore, session: Session) -> Session:
    entries = (NewEntry(kind=EntryKind.OUTPUT, token_ids=TOKENS),)
    after = session.advanced(entries, now=2.0)
    return await store.apply(Change(session=after, base_version=session.version, entries=entries))


def fill(path: Path) -> None:
    """Until the disk takes nothing more."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


async def turns_until_refused(store: SessionStore, session: Session) -> tuple[int, Session, StoreUnavailable]:
    """How many were taken, the session after them, and why the next one was not."""
    turns = 0
    while True:
        try:
            session = await add_turn(store, session)
        except StoreUnavailable as error:
            return turns, session, error
        turns += 1


def probe(store: SessionStore, clock: SetClock) -> None:
    """Let the store find out, as whoever asks it does once a probe is due; return when it has."""
    clock.now += LONGEST_PROBE_PAUSE_S
    assert store.failure is not None
    store._writer.submit(lambda _: None).result()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_file_system_refuses_at_once_and_takes_turns_again_when_there_is_room(small_disk: Path) -> None:
    clock = SetClock()
    store = SessionStore(small_disk / "data")
    store._writer.database.file.health = StoreHealth(small_disk / "data", clock)
    session = await store.apply(Change(session=new_session("ses_a"), base_version=0))
    filler = small_disk / "filler"
    fill(filler)
    turns, session, full = await turns_until_refused(store, session)
    assert "is full" in full.message
    assert full.retry_after_s
    with pytest.raises(StoreUnavailable):
        store.require_writable()
    assert (await store.log(session.place)).token_ids() == list(TOKENS) * turns, "what was told is there, and no more"
    os.truncate(filler, filler.stat().st_size - 200_000)
    probe(store, clock)
    assert store.failure is not None, "some room, and too little for the next turn"
    filler.unlink()
    assert store.failure is not None, "the next probe is not due yet"
    probe(store, clock)
    assert store.failure is None
    session = await add_turn(store, session)
    store.close()
    store = SessionStore(small_disk / "data")
    assert (await store.log(session.place)).token_ids() == list(TOKENS) * (turns + 1)
    store.close()


# Makes changes and tells, after each, how many writes below the folder no sync has followed.
WRITER = """
import asyncio, pathlib, struct, sys
sys.path.insert(0, sys.argv[3])
import test_failing_disk as t
from sessile.sessions.store import Change, SessionStore

def unsynced():
    numbers = struct.unpack_from("<3q", pathlib.Path(sys.argv[2]).read_bytes(), 16)
    return numbers[1], numbers[1] - numbers[2]

async def main():
    store = SessionStore(pathlib.Path(sys.argv[1]))
    session = await store.apply(Change(session=t.new_session("ses_a"), base_version=0))
    for _ in range(20):
        before = unsynced()[0]
        session = await t.add_turn(store, session)
        written, left = unsynced()
        print(written - before, left)
    store.close()

asyncio.run(main())
"""


def test_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    folder = tmp_path / "data"
    faults.watch(folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root"), **faults.environment}
    control = environment["FAULTS_CONTROL"]
    paths = [str(folder), control, str(Path(__file__).parent)]
    paths_of_fakes = f"{environment['PYTHONPATH']}:{ROOT / 'tests' / 'fakes'}"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, *paths],
        capture_output=True, text=True, env={**environment, "PYTHONPATH": paths_of_fakes}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    changes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(changes) == 20
    assert all(written > 0 for written, _ in changes)
    assert [left for _, left in changes] == [0] * 20
