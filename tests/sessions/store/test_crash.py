"""A writer process killed at any moment: what it was told is on disk is there, and nothing is half there."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from sessile.sessions.session import AtTurn, EntryKind, SessionLog
from sessile.sessions.store import SessionStore

ROOT = Path(__file__).resolve().parents[3]

# Opens sessions and runs turns on them, fork and rollback among them, telling each one only after its commit.
WRITER = """
import asyncio, sys, pathlib
from sessile.sessions.session import *
from sessile.sessions.store import Change, SessionStore, StoredAnswer

run = int(sys.argv[2])
model = ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t")

def entries(run, turn):
    return (NewEntry(kind=EntryKind.PROMPT, token_ids=tuple(range(run * 1000, run * 1000 + 50 + turn))),
            NewEntry(kind=EntryKind.OUTPUT, token_ids=tuple(range(turn, turn + 20))))

async def main(store):
    session = Session(session_id=f"ses_{run}", tenant="", version=1, state=SessionState.OPEN, place=START, model=model,
                      system="s" * 1000, tools=(), parent_session_id=None, created_at=1.0, updated_at=1.0)
    session = await store.apply(Change(session=session, base_version=0))
    print("told", session.session_id, 0, flush=True)
    for turn in range(1, 100000):
        if turn % 7 == 0:
            place = (await store.log(session.place)).find(AtTurn(turn - 2), "at")
            fork = session.forked(f"ses_{run}_{turn}", place, now=2.0)
            await store.apply(Change(session=fork, base_version=0))
            print("told", fork.session_id, turn - 2, flush=True)
        new = entries(run, turn)
        answer = StoredAnswer(scope=session.session_id, request_id=str(turn), request_digest=b"d", answer=b"a" * 200,
                              created_at=3.0)
        after = session.advanced(new, now=2.0)
        session = await store.apply(Change(session=after, base_version=session.version, entries=new, answer=answer))
        print("told", session.session_id, turn, flush=True)

store = SessionStore(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
asyncio.run(main(store))
"""


def turn_tokens(run: int, turn: int) -> list[int]:
    return [*range(run * 1000, run * 1000 + 50 + turn), *range(turn, turn + 20)]


def run_writer_and_kill(folder: Path, run: int, after_s: float) -> list[list[str]]:
    """What the writer told before it was killed, ``after_s`` seconds after it was ready (negative: before that)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root")}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(run)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert writer.stdout is not None
    if after_s >= 0:
        assert writer.stdout.readline() == "ready\n"
        time.sleep(after_s)
    else:
        time.sleep(-after_s)
    writer.send_signal(signal.SIGKILL)
    told, _ = writer.communicate()
    return [line.split() for line in told.splitlines() if line.startswith("told") and line.count(" ") == 2]


def read_back(store: SessionStore, session_id: str) -> SessionLog:
    session = asyncio.run(store.session(session_id))
    assert session is not None, f"{session_id} was told and is gone"
    return asyncio.run(store.log(session.place))


def test_kill_9_of_a_writer(tmp_path: Path) -> None:
    chance = random.Random(20)
    folder = tmp_path / "data"
    delays = [-0.1, -0.25, *(chance.uniform(0.0, 0.12) for _ in range(8))]
    all_told: dict[str, int] = {}
    for run, delay in enumerate(delays):
        for _, session_id, turn in run_writer_and_kill(folder, run, delay):
            all_told[session_id] = max(all_told.get(session_id, 0), int(turn))
        store = SessionStore(folder)
        try:
            for session_id, turn in all_told.items():
                check(read_back(store, session_id), session_id, turn)
        finally:
            store.close()
    assert len(all_told) > 5


def check(log: SessionLog, session_id: str, told: int) -> None:
    """All turns that were told, at most one more, and no half of one."""
    run = int(session_id.split("_")[1])
    turns = log.place.num_turns
    assert told <= turns <= told + 1
    expected = [token for turn in range(1, turns + 1) for token in turn_tokens(run, turn)]
    assert log.token_ids() == expected
    assert all(part.entry.kind is not EntryKind.INPUT for part in log.parts)
    assert log.find(AtTurn(turns), "at") == log.place
