"""Damaged files, full disks, folders that cannot be written, two servers: an error with a remedy, nothing dropped."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sessile.sessions.errors import StoreError
from sessile.sessions.session import START, EntryKind, ModelIdentity, NewEntry, Session, SessionState
from sessile.sessions.store import Change, SessionStore

ROOT = Path(__file__).resolve().parents[3]
MODEL = ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t")
TOKENS = tuple(range(4000))


def new_session(session_id: str) -> Session:
    return Session(
        session_id=session_id,
        tenant="",
        version=1,
        state=SessionState.OPEN,
        place=START,
        model=MODEL,
        system="be good",
        tools=(),
        parent_session_id=None,
        created_at=1.0,
        updated_at=1.0,
    )


async def add_turn(store: SessionStore, session: Session, tokens: tuple[int, ...] = TOKENS) -> Session:
    entries = (NewEntry(kind=EntryKind.OUTPUT, token_ids=tokens),)
    after = session.advanced(entries, now=2.0)
    return await store.apply(Change(session=after, base_version=session.version, entries=entries))


async def fill(store: SessionStore, tokens: tuple[int, ...] = TOKENS) -> None:
    for index in range(4):
        session = await store.apply(Change(session=new_session(f"ses_{index}"), base_version=0))
        for _ in range(3):
            session = await add_turn(store, session, tokens)


async def read_everything(store: SessionStore, tokens: tuple[int, ...] = TOKENS) -> None:
    sessions = await store.sessions("", limit=100)
    if len(sessions) != 4:
        raise AssertionError(f"{len(sessions)} sessions: some were dropped in silence")
    for session in sessions:
        log = await store.log(session.place)
        if log.token_ids() != list(tokens * 3) or session.system != "be good":
            raise AssertionError("wrong content was read as if it were right")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    store = SessionStore(folder)
    asyncio.run(fill(store))
    store.close()
    return folder


def copy_of(filled: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    shutil.copytree(filled, folder)
    return folder


def opened_and_read(folder: Path, tokens: tuple[int, ...] = TOKENS) -> None:
    store = SessionStore(folder)
    try:
        asyncio.run(read_everything(store, tokens))
    finally:
        store.close()


def test_what_was_closed_is_read(filled: Path, tmp_path: Path) -> None:
    folder = copy_of(filled, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["sessile.lock", "sessions.db"]
    opened_and_read(folder)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_database(filled: Path, tmp_path: Path, share: float) -> None:
    folder = copy_of(filled, tmp_path)
    path = folder / "sessions.db"
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(StoreError, match="damaged") as damaged:
        opened_and_read(folder)
    assert "backup" in (damaged.value.remedy or "")


@pytest.mark.parametrize("full_check_bytes", [2**30, 0])
@pytest.mark.parametrize("num_tokens", [4000, 30])
def test_a_flipped_bit_is_seen_or_does_not_matter(
    tmp_path: Path, num_tokens: int, full_check_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tokens, in tables, in indexes; also in a file that is too large to be checked as a whole."""
    monkeypatch.setattr("sessile.sessions.store.store_file._FULL_CHECK_BYTES", full_check_bytes)
    tokens = tuple(range(num_tokens))
    store = SessionStore(tmp_path)
    asyncio.run(fill(store, tokens))
    store.close()
    path = tmp_path / "sessions.db"
    original = path.read_bytes()
    used = [position for position, byte in enumerate(original) if byte]
    chance = random.Random(7)
    seen = 0
    for _ in range(100):
        content = bytearray(original)
        content[chance.choice(used)] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            opened_and_read(tmp_path, tokens)
        except StoreError:
            seen += 1
        for name in ("sessions.db-wal", "sessions.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
    assert seen > 60  # the rest is where nothing is kept


def test_not_a_database_at_all(tmp_path: Path) -> None:
    (tmp_path / "sessions.db").write_bytes(b"hello" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        SessionStore(tmp_path)


def test_a_missing_database_beside_its_log(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "sessions.db-wal").write_bytes(b"x" * 100)
    with pytest.raises(StoreError, match="missing beside its write-ahead log"):
        SessionStore(tmp_path)


def test_a_missing_entry_is_not_skipped(filled: Path, tmp_path: Path) -> None:
    folder = copy_of(filled, tmp_path)
    database = sqlite3.connect(folder / "sessions.db")
    database.execute("DELETE FROM entries WHERE entry_id = 2")
    database.commit()
    database.close()
    with pytest.raises(StoreError, match="damaged"):
        opened_and_read(folder)


def test_a_newer_schema_is_refused(filled: Path, tmp_path: Path) -> None:
    folder = copy_of(filled, tmp_path)
    database = sqlite3.connect(folder / "sessions.db")
    database.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('sessile.sessions', 'm999_later', '')"
    )
    database.commit()
    database.close()
    with pytest.raises(StoreError, match="newer version") as newer:
        SessionStore(folder)
    assert newer.value.remedy is not None
    opened_again = sqlite3.connect(folder / "sessions.db")
    assert opened_again.execute("SELECT count(*) FROM sessions").fetchone() == (4,)
    opened_again.close()


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    with pytest.raises(StoreError, match=f"in use by another server \\(process {os.getpid()}\\)") as locked:
        SessionStore(tmp_path)
    assert "--data-dir" in (locked.value.remedy or "")
    store.close()
    SessionStore(tmp_path).close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.close()
    store.close()
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            await store.session("ses_0")
        with pytest.raises(StoreError, match="closed"):
            await store.apply(Change(session=new_session("ses_0"), base_version=0))


async def test_a_change_behind_the_stores_back_is_refused(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    session = await store.apply(Change(session=new_session("ses_0"), base_version=0))
    await add_turn(store, session)
    with pytest.raises(StoreError, match="another program"):
        await add_turn(store, session)
    log = await store.log((await store.session("ses_0")).place)  # type: ignore[union-attr]
    assert log.num_tokens == len(TOKENS)
    store.close()


@pytest.mark.parametrize("removed", ["sessions.db", "sessions.db-wal", ""])
async def test_files_removed_while_the_server_runs(tmp_path: Path, removed: str) -> None:
    """Nothing may be acknowledged that no file holds."""
    folder = tmp_path / "data"
    store = SessionStore(folder)
    session = await store.apply(Change(session=new_session("ses_0"), base_version=0))
    if removed:
        (folder / removed).rename(tmp_path / "elsewhere")
    else:
        folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="removed or replaced") as gone:
        await add_turn(store, session)
    assert "nothing new is taken" in (gone.value.remedy or "")
    store.close()


FULL_DISK = """
import asyncio, pathlib, resource, sys
sys.path.insert(0, sys.argv[2])
from sessile.sessions.errors import StoreError
from sessile.sessions.store import Change, SessionStore
import test_faults as t

async def main():
    store = SessionStore(pathlib.Path(sys.argv[1]))
    session = await store.apply(Change(session=t.new_session("ses_0"), base_version=0))
    size = sum(p.stat().st_size for p in pathlib.Path(sys.argv[1]).iterdir() if p.name.endswith("-wal"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 60_000, resource.RLIM_INFINITY))
    turns = 0
    try:
        while True:
            session = await t.add_turn(store, session)
            turns += 1
    except StoreError as error:
        print("refused", error)
    log = await store.log((await store.session("ses_0")).place)
    assert log.token_ids() == list(t.TOKENS) * turns
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    session = await t.add_turn(store, session)
    print("kept", turns, (await store.log(session.place)).place.num_turns)
    store.close()

asyncio.run(main())
"""

READ_ONLY = """
import os, pathlib, sys
from sessile.sessions.errors import StoreError
from sessile.sessions.store import SessionStore
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)  # root may write everywhere
try:
    SessionStore(pathlib.Path(sys.argv[1]))
except StoreError as error:
    print(error)
"""


def run_script(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_refuses_and_keeps_what_was_told(tmp_path: Path) -> None:
    said = run_script(FULL_DISK, str(tmp_path / "data"), str(Path(__file__).parent))
    refused, kept = said.splitlines()
    assert refused.startswith("refused the ")
    _, before, after = kept.split()
    assert int(after) == int(before) + 1


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, 0o444), (0o555, 0o666), (0o777, 0o444)])
def test_a_folder_that_cannot_be_written(filled: Path, folder_mode: int, file_mode: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = copy_of(filled, Path(parent))
        for path in folder.iterdir():
            path.chmod(file_mode if path.suffix == ".db" else 0o666)
        folder.chmod(folder_mode)
        said = run_script(READ_ONLY, str(folder))
        folder.chmod(0o755)
    assert "cannot be written" in said
    assert "--data-dir" in said


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        SessionStore(tmp_path / "data")
