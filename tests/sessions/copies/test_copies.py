"""Copies of the sessions: whole while they are written to, and what brings damaged ones back."""

from __future__ import annotations

import asyncio
import queue
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from set_clock import SetClock

from sessile.server import app
from sessile.sessions.copies.alone import alone
from sessile.sessions.copies.copies import EVERY_S, KEPT, DataCopies
from sessile.sessions.copies.databases import require_sound
from sessile.sessions.copies.replace import Part
from sessile.sessions.copies.restore import restore_newest
from sessile.sessions.copies.thread import CopyThread
from sessile.sessions.errors import StoreError
from sessile.sessions.session import START, EntryKind, ModelIdentity, NewEntry, Session, SessionState
from sessile.sessions.store import Change, SessionStore

MODEL = ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    store = SessionStore(tmp_path)
    yield store
    store.close()


async def open_session(store: SessionStore, name: str) -> Session:
    session = Session(
        session_id=name, tenant="", version=1, state=SessionState.OPEN, place=START, model=MODEL, system=None,
        tools=(), parent_session_id=None, created_at=1.0, updated_at=1.0,
    )  # fmt: skip
    return await store.apply(Change(session=session, base_version=0))


async def add_turn(store: SessionStore, session: Session, number: int) -> Session:
    entries = (NewEntry(kind=EntryKind.OUTPUT, token_ids=(number,) * 2000),)
    after = session.advanced(entries, now=2.0)
    return await store.apply(Change(session=after, base_version=session.version, entries=entries))


async def tokens_of(folder: Path, name: str) -> list[int]:
    store = SessionStore(folder)
    try:
        session = await store.session(name)
        return [] if session is None else (await store.log(session.place)).token_ids()
    finally:
        store.close()


def damage(folder: Path) -> None:
    path = folder / "sessions.db"
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xa5" * 4096
    path.write_bytes(content)


async def test_a_damaged_store_goes_back_to_its_last_good_copy(tmp_path: Path, capsys) -> None:
    store = SessionStore(tmp_path)
    session = await add_turn(store, await open_session(store, "ses_a"), 7)
    await asyncio.to_thread(DataCopies(tmp_path).make)
    await add_turn(store, session, 8)
    store.close()
    damage(tmp_path)
    with pytest.raises(StoreError, match="sessile store restore"):
        SessionStore(tmp_path)
    flags = ["--data-dir", str(tmp_path)]
    assert await asyncio.to_thread(app.main, ["store", *flags, "check"]) == 1
    assert await asyncio.to_thread(app.main, ["store", *flags, "restore"]) == 0
    assert "turns taken since then are missing" in capsys.readouterr().out
    assert await tokens_of(tmp_path, "ses_a") == [7] * 2000
    (aside,) = tmp_path.glob("damaged-*")  # noqa: ASYNC240 - a moment, in a test
    assert (aside / "sessions.db").exists(), "what was there is kept"
    assert await asyncio.to_thread(app.main, ["store", *flags, "check"]) == 0


async def test_a_copy_made_while_turns_are_written_is_one_moment_of_them(store: SessionStore, tmp_path: Path) -> None:
    sessions = [await open_session(store, f"ses_{number}") for number in range(4)]
    copying = asyncio.create_task(asyncio.to_thread(DataCopies(tmp_path).make))
    turns = 0
    while not copying.done() or turns < 8:
        sessions = [await add_turn(store, session, turns) for session in sessions]
        turns += 1
    made = copying.result()
    require_sound(made / "sessions.db")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "sessions.db").stat().st_mode) == 0o600
    lengths = [len(await tokens_of(made, session.session_id)) // 2000 for session in sessions]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


async def test_a_damaged_copy_is_passed_over_for_an_older_good_one(tmp_path: Path) -> None:
    clock = SetClock(1_800_000_000.0)
    store = SessionStore(tmp_path)
    await add_turn(store, await open_session(store, "ses_a"), 7)
    good = await asyncio.to_thread(DataCopies(tmp_path, clock).make)
    clock.now += 10
    newer = await asyncio.to_thread(DataCopies(tmp_path, clock).make)
    store.close()
    (newer / "sessions.db").write_bytes((newer / "sessions.db").read_bytes()[:5000])
    assert restore_newest(tmp_path, clock).sources == {Part.SESSIONS: good}
    assert await tokens_of(tmp_path, "ses_a") == [7] * 2000


async def test_copies_are_due_every_few_hours_and_few_are_kept(store: SessionStore, tmp_path: Path) -> None:
    clock = SetClock(1_800_000_000.0)
    copies = DataCopies(tmp_path, clock)
    made = []
    for _ in range(KEPT + 2):
        assert copies.is_due()
        made.append(await asyncio.to_thread(copies.make))
        assert not copies.is_due()
        clock.now += EVERY_S
    assert copies.all() == made[: -KEPT - 1 : -1]


def test_no_restore_under_a_running_server_nor_without_a_copy(store: SessionStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="in use by another server"):
        restore_newest(tmp_path)
    store.close()
    with pytest.raises(StoreError, match="no sound copy"):
        restore_newest(tmp_path)
    assert (tmp_path / "sessions.db").exists(), "nothing was moved"


def test_no_room_is_said_before_anything_is_written(store: SessionStore, tmp_path: Path, monkeypatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("sessile.sessions.copies.copies.shutil.disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match="are free"):
        DataCopies(tmp_path).make()
    assert not DataCopies(tmp_path).all()


async def test_copies_that_are_made_at_once_do_not_disturb_each_other(store: SessionStore, tmp_path: Path) -> None:
    copies = [DataCopies(tmp_path) for _ in range(4)]
    made = await asyncio.gather(*(asyncio.to_thread(one.make) for one in copies))
    assert copies[0].all() == sorted(made, reverse=True)[:KEPT]
    for copy in copies[0].all():
        require_sound(copy / "sessions.db")


def test_the_server_makes_no_copy_while_another_process_does(store: SessionStore, tmp_path: Path) -> None:
    copies = DataCopies(tmp_path)
    with alone(tmp_path / "copies"):
        assert copies.make_if_due() is None
    assert copies.make_if_due() in copies.all()
    assert copies.make_if_due() is None, "it is not due again"


class _LongCopies(DataCopies):
    """A copy that takes until ``may_end``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.ended_in_time = False

    def make_if_due(self) -> Path | None:
        self.begun.set()
        self.ended_in_time = self.may_end.wait(60)
        return None


async def test_a_server_that_stops_goes_on_while_a_copy_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessile.sessions.copies.thread.FIRST_LOOK_S", 0.0)
    copies = _LongCopies(tmp_path)
    thread = CopyThread(copies)
    await asyncio.to_thread(copies.begun.wait)
    asyncio.get_running_loop().call_soon(copies.may_end.set)
    await thread.aclose()
    assert copies.ended_in_time


class _CopiesByTurns(DataCopies):
    """Each look waits for what it shall find: a copy, an error, or None where none is due."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.found: queue.Queue[Path | Exception | None] = queue.Queue()
        self.looks: queue.Queue[None] = queue.Queue()

    def make_if_due(self) -> Path | None:
        self.looks.put(None)
        found = self.found.get(timeout=60)
        if isinstance(found, Exception):
            raise found
        return found


async def test_copies_that_fail_are_seen_until_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("FIRST_LOOK_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(f"sessile.sessions.copies.thread.{name}", 0.0)
    (tmp_path / "batches.db").touch()
    whole, without_batches = tmp_path / "whole", tmp_path / "part"
    for copy in (whole, without_batches):
        copy.mkdir()
    (whole / "batches.db").touch()
    copies = _CopiesByTurns(tmp_path)
    thread = CopyThread(copies)
    copies.looks.get(timeout=60)
    for found, is_failing in (
        (None, False),
        (StoreError("no room"), True),
        (None, True),  # not due again at once: the last one failed all the same
        (whole, False),
        (without_batches, True),
        (whole, False),
        (ValueError("a fault of ours"), True),
        (whole, False),
    ):
        copies.found.put(found)
        await asyncio.to_thread(copies.looks.get, timeout=60)
        assert thread.is_failing is is_failing, found
    asyncio.get_running_loop().call_soon(copies.found.put, None)  # once it knows that it is to end
    await thread.aclose()
    assert "no room" in caplog.text
    assert "a fault of ours" in caplog.text
