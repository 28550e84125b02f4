"""Changes that wait together are written together, and none of them suffers from another."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sessile.sessions.errors import StoreError
from sessile.sessions.session import START, EntryKind, ModelIdentity, NewEntry, Session, SessionState
from sessile.sessions.store import Change, DuplicateRequest, SessionStore, StoredAnswer
from sessile.sessions.store.database import SessionDatabase


def opening(session_id: str, request_id: str | None = None) -> Change:
    session = Session(
        session_id=session_id,
        tenant="",
        version=1,
        state=SessionState.OPEN,
        place=START,
        model=ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t"),
        system=None,
        tools=(),
        parent_session_id=None,
        created_at=1.0,
        updated_at=1.0,
    )
    answer = None
    if request_id is not None:
        answer = StoredAnswer(scope="tenant:", request_id=request_id, request_digest=b"d", answer=b"a", created_at=1.0)
    return Change(session=session, base_version=0, answer=answer)


def turn(session: Session, token: int) -> Change:
    entries = (NewEntry(kind=EntryKind.OUTPUT, token_ids=(token,)),)
    return Change(session=session.advanced(entries, now=2.0), base_version=session.version, entries=entries)


async def together(store: SessionStore, changes: list[Change]) -> list[Any]:
    """Outcomes of changes that all come while the writer is held up."""
    held = threading.Event()
    store._writer.submit(lambda _: held.wait())
    work = [asyncio.ensure_future(store.apply(change)) for change in changes]
    await asyncio.sleep(0)
    held.set()
    return await asyncio.gather(*work, return_exceptions=True)


async def test_one_write_for_all_and_each_its_own_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SessionStore(tmp_path)
    groups: list[int] = []
    apply_all = SessionDatabase.apply_all

    def counted(database: SessionDatabase, changes: list[Change]) -> list[Any]:
        groups.append(len(changes))
        return apply_all(database, changes)

    monkeypatch.setattr(SessionDatabase, "apply_all", counted)
    a, b = [await store.apply(opening(name)) for name in ("a", "b")]
    groups.clear()
    outcomes = await together(
        store,
        [
            turn(a, 1),
            opening("c", "r"),
            opening("d", "r"),  # the same request twice at once
            turn(b, 2),
            turn(b, 3),  # stale by now
            opening("e"),
        ],
    )
    assert groups == [6]
    assert [type(outcome) for outcome in outcomes] == [Session, Session, DuplicateRequest, Session, StoreError, Session]
    for session_id, tokens in (("a", [1]), ("b", [2]), ("c", []), ("e", [])):
        session = await store.session(session_id)
        assert session is not None
        assert (await store.log(session.place)).token_ids() == tokens
    assert await store.session("d") is None
    store.close()


async def test_a_change_that_the_database_refuses_fails_alone(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    await store.apply(opening("a"))
    too_large = msgspec.structs.replace(opening("huge").session, version=2**70)
    outcomes = await together(
        store, [opening("b"), opening("a"), Change(session=too_large, base_version=0), opening("c")]
    )
    assert [isinstance(outcome, Session) for outcome in outcomes] == [True, False, False, True]
    assert [(await store.session(name)) is not None for name in "abc"] == [True] * 3
    store.close()


async def test_cancelled_callers_do_not_disturb_the_group(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    held = threading.Event()
    store._writer.submit(lambda _: held.wait())
    work = [asyncio.ensure_future(store.apply(opening(f"s{index}"))) for index in range(6)]
    await asyncio.sleep(0)
    for task in work[::2]:
        task.cancel()
    await asyncio.sleep(0)
    held.set()
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [True, False] * 3
    assert len(await store.sessions("", limit=10)) == 6
    store.close()
