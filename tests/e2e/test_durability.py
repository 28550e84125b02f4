"""A session of 20 turns with two forks and a rollback, the server killed with ``kill -9`` at three random points."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from served_llama import make_served_llama
from server_process import ServerProcess
from tiny_llama import SMALL

from sessile.server.client import AsyncSession, AsyncSessionClient, RetryPolicy, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENT = RetryPolicy(max_attempts=1000, longest_delay_s=0.5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
TURNS = 20


@dataclass(frozen=True, slots=True)
class Told:
    """What a client was told of one session after one turn."""

    step: int
    token_ids: tuple[int, ...]
    version: int
    num_tokens: int


class Conversation:
    """The same conversation each time it is played: 20 turns, forks after turns 7 and 13, a rollback after 16."""

    def __init__(self, client: AsyncSessionClient) -> None:
        self._client = client
        self.told: list[Told] = []
        self.step = 0

    async def play(self) -> list[AsyncSession]:
        trunk = await self._client.open(system="You are a careful assistant.")
        forks: list[AsyncSession] = []
        for turn in range(1, TURNS + 1):
            await self._turn(trunk, f"Step {turn}: name a town whose name has {turn % 7 + 3} letters.")
            if turn in (7, 13):
                fork = await trunk.fork(turn=turn - 2)
                await self._turn(fork, f"Instead, count from {turn} on.")
                forks.append(fork)
            if turn == 16:
                await trunk.rollback(turn=14)
        return [trunk, *forks]

    async def _turn(self, session: AsyncSession, text: str) -> None:
        running = session.generate(messages=text, sampling=GREEDY)
        finished = await running.wait()
        self.step += 1
        self.told.append(Told(self.step, running.token_ids, finished.version, finished.num_tokens))


async def play_undisturbed(server: ServerProcess) -> list[Told]:
    async with AsyncSessionClient(server.grpc_target, retry=PATIENT) as client:
        conversation = Conversation(client)
        await conversation.play()
        return conversation.told


async def kill_three_times(server: ServerProcess, conversation: Conversation, rng: random.Random) -> list[int]:
    """Kill the server somewhere inside three different steps, and start it again each time."""
    kills: list[int] = []
    for step in sorted(rng.sample(range(1, TURNS + 1), 3)):
        while conversation.step < step:
            await asyncio.sleep(0.002)
        await asyncio.sleep(rng.uniform(0, 0.2))
        server.kill()
        kills.append(conversation.step)
        server.launch()
        await asyncio.to_thread(server.wait_ready)
    return kills


async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    model = make_served_llama(tmp_path / "model", SMALL, max_position=8192)
    flags = ("--model", str(model), "--kv-memory-bytes", "64MiB", "--host-memory-bytes", "0")
    with ServerProcess(tmp_path / "data", *flags) as server:
        expected = await play_undisturbed(server)
        async with AsyncSessionClient(server.grpc_target, retry=PATIENT) as client:
            conversation = Conversation(client)
            killer = asyncio.create_task(kill_three_times(server, conversation, random.Random(seed)))
            sessions = await conversation.play()
            kills = await killer
            assert len(kills) == 3
            assert conversation.told == expected, f"killed after steps {kills}, seed {seed}"
            for session in sessions:
                seen = session.view
                assert await session.refresh() == seen or session.view.num_tokens == seen.num_tokens
            listed = {view.session_id async for view in client.sessions()}
            assert listed >= {session.session_id for session in sessions}
            assert len(listed) == 2 * len(sessions), "those that were played undisturbed are there, too"
