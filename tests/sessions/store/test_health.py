"""When a store that failed is tried again: one failure is one failure, however many changes it takes down."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from set_clock import SetClock

from sessile.sessions.errors import StoreError, StoreUnavailable
from sessile.sessions.session import START, ModelIdentity, Session, SessionState
from sessile.sessions.store import Change
from sessile.sessions.store.database import SessionDatabase
from sessile.sessions.store.files import create_database
from sessile.sessions.store.health import CHECK_EVERY_S, LONGEST_PROBE_PAUSE_S, PROBE_EVERY_S, StoreHealth

FULL = StoreUnavailable("the disk is full")
DAMAGED = StoreError("the file is damaged")
MODEL = ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def health(tmp_path: Path, clock: SetClock) -> StoreHealth:
    return StoreHealth(tmp_path, clock)


def pause(health: StoreHealth, clock: SetClock) -> float:
    """Seconds until the next probe, at which the clock stands then."""
    begun = clock.now
    while not health.is_probe_due():
        clock.now += 0.5
    return clock.now - begun


def opening(session_id: str) -> Change:
    session = Session(
        session_id=session_id, tenant="", version=1, state=SessionState.OPEN, place=START, model=MODEL, system=None,
        tools=(), parent_session_id=None, created_at=1.0, updated_at=1.0,
    )  # fmt: skip
    return Change(session=session, base_version=0)


def test_only_failed_probes_lengthen_the_pause(health: StoreHealth, clock: SetClock) -> None:
    for _ in range(5):
        health.failed(FULL)
    pauses = []
    for _ in range(5):
        pauses.append(pause(health, clock))
        health.failed(FULL)  # a change that was on its way
        health.probe_failed(FULL)
    assert pauses == [PROBE_EVERY_S, 2 * PROBE_EVERY_S, 4 * PROBE_EVERY_S, LONGEST_PROBE_PAUSE_S, LONGEST_PROBE_PAUSE_S]
    health.succeeded()
    health.failed(FULL)
    assert pause(health, clock) == PROBE_EVERY_S


def test_only_failed_checks_lengthen_the_pause_of_a_damaged_file(health: StoreHealth, clock: SetClock) -> None:
    for _ in range(3):
        health.damaged(DAMAGED)
    assert pause(health, clock) == CHECK_EVERY_S
    health.check_failed(DAMAGED)
    assert pause(health, clock) == 2 * CHECK_EVERY_S


def test_a_check_that_cannot_read_the_file_lengthens_its_pause(health: StoreHealth, clock: SetClock) -> None:
    health.damaged(DAMAGED)
    assert pause(health, clock) == CHECK_EVERY_S
    health.probe_failed(FULL)
    assert pause(health, clock) == 2 * CHECK_EVERY_S
    assert health.is_damaged
    assert str(health.failure) == str(DAMAGED)


@pytest.mark.parametrize(("code", "seconds"), [("SQLITE_FULL", PROBE_EVERY_S), ("SQLITE_CORRUPT", CHECK_EVERY_S)])
def test_a_group_of_changes_that_fails_is_one_failure(
    tmp_path: Path, health: StoreHealth, clock: SetClock, monkeypatch: pytest.MonkeyPatch, code: str, seconds: float
) -> None:
    def fails(change: Change) -> Session:
        error = sqlite3.OperationalError("as SQLite says it")
        error.sqlite_errorcode = getattr(sqlite3, code)
        raise error

    path = tmp_path / "sessions.db"
    create_database(path)
    with closing(SessionDatabase(path)) as database:
        database.file.prepare()
        database.file.health = health
        monkeypatch.setattr(database, "_apply", fails)
        outcomes = database.apply_all([opening(name) for name in "abc"])
        assert [isinstance(outcome, StoreError) for outcome in outcomes] == [True] * 3
        assert pause(health, clock) == seconds
