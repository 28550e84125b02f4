"""A whole conversation while its server is killed again and again: nothing told is lost, nothing is said twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sessile.server.client import AsyncSession, AsyncSessionClient, RetryPolicy, SamplingParams
from sessile.sessions.store import SessionStore

ROOT = Path(__file__).resolve().parents[3]
FAKES = ROOT / "tests" / "fakes"


class Server:
    """A server process that can be killed and started again on the same port and folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.kills = 0

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / '.import-root'}:{FAKES}"}
        command = [sys.executable, str(FAKES / "scripted_server.py"), str(self._folder), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None
            self.kills += 1

    async def come_back(self, seconds: float) -> None:
        """Between two attempts: somebody starts the server again, and gRPC takes its time to notice."""
        if self._process is None:
            await asyncio.to_thread(self.start)
        await asyncio.sleep(min(seconds, 0.2))


class Talk:
    """Twenty turns with two forks and a rollback; ``after_delta`` and ``after_change`` may kill the server."""

    def __init__(self, client: AsyncSessionClient, interrupt: Callable[[], None]) -> None:
        self._client = client
        self._interrupt = interrupt
        self.told: list[tuple[str, int, str]] = []

    async def turns(self, session: AsyncSession, first: int, last: int) -> None:
        for number in range(first, last + 1):
            turn = session.generate(messages=f"question {number}", sampling=SamplingParams(seed=number))
            async for _ in turn:
                self._interrupt()
            self.told.append((session.session_id, turn.finished.turn, turn.text))
            assert turn.finished.num_tokens == session.view.num_tokens

    async def run(self) -> list[str]:
        session = await self._client.open(system="be good")
        self._interrupt()
        await self.turns(session, 1, 6)
        early = await session.fork(turn=4)
        self._interrupt()
        await self.turns(early, 7, 10)
        await session.rollback(turn=5)
        self._interrupt()
        await self.turns(session, 11, 16)
        late = await session.fork()
        self._interrupt()
        await self.turns(late, 17, 20)
        return [session.session_id, early.session_id, late.session_id]


async def tokens_of(folder: Path, session_ids: list[str]) -> list[list[int]]:
    store = SessionStore(folder)
    logs = []
    for session_id in session_ids:
        session = await store.session(session_id)
        assert session is not None
        logs.append((await store.log(session.place)).token_ids())
    store.close()
    return logs


async def converse(folder: Path, interrupt_at: set[int]) -> tuple[list[list[int]], list[tuple[int, str]], int]:
    """All logs' tokens, what each turn said, and how often the server was killed."""
    server = Server(folder)
    server.start()
    points = 0

    def interrupt() -> None:
        nonlocal points
        points += 1
        if points in interrupt_at:
            server.kill()

    retry = RetryPolicy(max_attempts=50, sleep=server.come_back, random=lambda: 0.0)
    try:
        async with AsyncSessionClient(f"127.0.0.1:{server.port}", retry=retry) as client:
            talk = Talk(client, interrupt)
            session_ids = await talk.run()
    finally:
        kills = server.kills
        server.kill()
    said = [(turn, text) for _, turn, text in talk.told]
    return await tokens_of(folder, session_ids), said, kills


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_conversation_with_kills(tmp_path: Path, seed: int) -> None:
    undisturbed, said, _ = await converse(tmp_path / "quiet", set())
    assert len(said) == 20
    at = set(random.Random(seed).sample(range(1, 120), 3))
    disturbed, said_again, kills = await converse(tmp_path / "killed", at)
    assert kills == 3
    assert disturbed == undisturbed
    assert said_again == said
