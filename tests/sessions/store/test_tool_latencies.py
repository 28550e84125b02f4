"""How long tools took: the same after a restart, bounded, and no reason not to start."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from sessile.sessions.store import SessionStore, StoredLatency


def latency(tool: str, used_at: float, sketch: bytes = b"s", tenant: str = "a") -> StoredLatency:
    return StoredLatency(tenant=tenant, tool=tool, sketch=sketch, used_at=used_at)


def kept(folder: Path) -> list[StoredLatency]:
    store = SessionStore(folder)
    try:
        return asyncio.run(store.tool_latencies())
    finally:
        store.close()


def test_they_are_there_after_a_restart_the_latest_last(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    asyncio.run(store.keep_tool_latencies([latency("grep", 5.0), latency("make", 1.0)]))
    asyncio.run(store.keep_tool_latencies([latency("make", 9.0, b"newer"), latency("make", 7.0, tenant="b")]))
    store.close()
    expected = [latency("grep", 5.0), latency("make", 7.0, tenant="b"), latency("make", 9.0, b"newer")]
    assert kept(tmp_path) == expected


def test_those_used_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessile.sessions.store.tool_latencies.MOST_ROWS", 3)
    store = SessionStore(tmp_path)
    asyncio.run(store.keep_tool_latencies([latency(str(n), float(n)) for n in (4, 0, 3, 1, 2)]))
    asyncio.run(store.prune(before=0.0))
    store.close()
    monkeypatch.undo()
    assert [each.tool for each in kept(tmp_path)] == ["2", "3", "4"]


def test_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    asyncio.run(store.keep_tool_latencies([latency("grep", 5.0), latency("make", 1.0)]))
    store.close()
    database = sqlite3.connect(tmp_path / "sessions.db")
    database.execute("UPDATE tool_latencies SET sketch = x'00' WHERE tool = 'grep'")
    database.commit()
    database.close()
    assert kept(tmp_path) == [latency("make", 1.0)]
