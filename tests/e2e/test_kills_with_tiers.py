"""``kill -9`` at 20 random points, most in mid-turn: sessions go on from the disk, token for token."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from pathlib import Path

import pytest
from served_llama import make_served_llama
from server_process import ServerProcess
from tiny_llama import SMALL

from sessile.server.client import AsyncSessionClient, RetryPolicy, SamplingParams, TurnFinished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PATIENT = RetryPolicy(max_attempts=1000, longest_delay_s=0.5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
KILLS = 20
SERVER_KILLS = (5, 11, 17)  # of these, the whole server; the others end the engine alone
SYSTEM = "You keep the books of a small port. " + " ".join(
    f"Berth {i} takes ships up to {i * 7} metres." for i in range(40)
)
MEMORY = ("--kv-memory-bytes", "256MiB", "--host-memory-bytes", "0")


def question(turn: int) -> str:
    return f"Ship {turn} is {turn * 13 % 97} metres long. Which berth?"


async def play(server: ServerProcess, rng: random.Random | None) -> list[tuple[tuple[int, ...], TurnFinished]]:
    """A session of a turn a kill and one more; without ``rng`` nothing is killed."""
    turns = []
    async with AsyncSessionClient(server.grpc_target, retry=PATIENT) as client:
        session = await client.open(system=SYSTEM)
        for number in range(KILLS + 1):
            running = session.generate(messages=question(number), sampling=GREEDY)
            waiting = asyncio.create_task(running.wait())
            if rng is not None and number:
                await asyncio.sleep(rng.uniform(0, 0.3))
                await kill(server, number)
            end = await waiting
            turns.append((running.token_ids, end))
    return turns


async def kill(server: ServerProcess, number: int) -> None:
    if number in SERVER_KILLS:
        server.kill()
        server.launch()
        await asyncio.to_thread(server.wait_ready)
        return
    try:
        os.kill(server.engine_pid, signal.SIGKILL)
    except (LookupError, ProcessLookupError):  # it is only just starting again
        return


async def test_the_next_turn_is_the_same_and_the_session_comes_from_disk(tmp_path: Path) -> None:
    """LMCache #562, #1175, #1788, #2136: KV on SSD was written again after each restart."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    model = make_served_llama(tmp_path / "model", SMALL, max_position=8192)
    with ServerProcess(tmp_path / "calm", "--model", str(model), *MEMORY) as server:
        calm = await play(server, None)
    with ServerProcess(tmp_path / "killed", "--model", str(model), *MEMORY) as server:
        killed = await play(server, random.Random(seed))
    assert [tokens for tokens, _ in killed] == [tokens for tokens, _ in calm], f"seed {seed}"
    assert [end.version for _, end in killed] == [end.version for _, end in calm]
    known = disk = 0
    for (_, before), (_, after) in itertools.pairwise(killed):
        sources = after.usage.tokens_by_source
        assert sources.total == after.usage.prompt_tokens
        if sources.device < before.num_tokens // 2:  # the engine that ended this turn began without KV
            known += before.num_tokens - 1  # the KV of the last token is made by the turn itself
            disk += sources.disk
    assert known, f"no kill hit a turn, seed {seed}"
    assert disk >= 0.95 * known, f"{disk} of {known} tokens came from disk, seed {seed}"
