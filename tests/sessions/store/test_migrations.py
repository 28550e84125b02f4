"""Files of every version of the session store, opened with this one: nothing of them is lost.

``released/sessions-N.sql`` has the tables as the first N migrations make them, and rows, as text. It is never made
again, so that later changes of the code are tried on what was there before. A new migration adds a file.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from sessile.sessions.keeping import Persistence
from sessile.sessions.messages import Message, Role
from sessile.sessions.session import EntryKind, NewEntry, Session
from sessile.sessions.store import Change, SessionStore
from sessile.sessions.store.schema import SCHEMA_VERSION

RELEASED = Path(__file__).parent / "released"
VERSIONS = range(1, SCHEMA_VERSION + 1)
TOKENS = [10, 11, 12, 13, 14]


def left_by(version: int, folder: Path) -> Path:
    """The data folder of a server of that version, after it stopped."""
    with sqlite3.connect(folder / "sessions.db") as database:
        database.executescript((RELEASED / f"sessions-{version}.sql").read_text())
    database.close()
    return folder


async def the_session(store: SessionStore) -> Session:
    (session,) = await store.sessions("acme", limit=10)
    assert session.session_id == "ses_kept"
    return session


def test_every_version_left_a_file() -> None:
    found = {int(name) for path in RELEASED.iterdir() for name in re.findall(r"^sessions-(\d+)\.sql$", path.name)}
    assert found == set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_session_of_an_older_version_is_found_and_goes_on(version: int, tmp_path: Path) -> None:
    store = SessionStore(left_by(version, tmp_path))
    session = await the_session(store)
    assert (session.version, session.system, session.model.name) == (2, "be good", "m")
    log = await store.log(session.place)
    assert log.token_ids() == TOKENS
    assert [part.entry.kind for part in log.parts] == [EntryKind.PROMPT, EntryKind.OUTPUT]
    assert log.parts[0].entry.messages == (Message(role=Role.USER, content="hello"),)
    answer = await store.answer("ses_kept", "r1")
    assert answer is not None and answer.answer == b"answer"
    kept = session.keeping.persistence
    assert kept is None if version < 2 else kept is not None and kept.when is Persistence.ALWAYS
    assert await store.accounts(session.place) == ({2: b"account"} if version >= 4 else {})

    entries = (NewEntry(kind=EntryKind.OUTPUT, token_ids=(15, 16)),)
    after = session.advanced(entries, now=3.0)
    await store.apply(Change(session=after, base_version=2, entries=entries))
    store.close()
    again = SessionStore(tmp_path)
    session = await the_session(again)
    assert (await again.log(session.place)).token_ids() == [*TOKENS, 15, 16]
    again.close()
    with sqlite3.connect(tmp_path / "sessions.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert database.execute("SELECT count(*) FROM _sqlite_migrations").fetchone() == (SCHEMA_VERSION,)
    database.close()
