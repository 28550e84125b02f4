"""Sessions whose KV leaves the device, or whose file goes to another server, say the same as those that stayed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server_process import ROOT, ServerProcess

from sessile.server.client import (
    AsyncSession,
    AsyncSessionClient,
    AsyncTurn,
    Persistence,
    PersistencePolicy,
    RequestError,
    RetryPolicy,
    SamplingParams,
    TurnUsage,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BLOCK_BYTES = 30 * 2 * 3 * 64 * 2 * 16  # of the embedded model: layers, K and V, heads, head size, bfloat16, tokens
FLAGS = ("--kv-memory-bytes", "128MiB", "--host-memory-bytes", "64MiB", "--disk-quota-bytes", "256MiB")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)
SYSTEM = "You are a careful assistant. " + " ".join(f"Rule {number}: be brief." for number in range(60))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers that have an export key in common, and nothing else."""
    folder = tmp_path_factory.mktemp("servers")
    flags = (*FLAGS, "--sessions-export-key", str(folder / "shared.key"))
    with ServerProcess(folder / "one", *flags) as one, ServerProcess(folder / "two", *flags) as two:
        yield one, two


def ask(session: AsyncSession, question: str) -> AsyncTurn:
    return session.generate(messages=question, sampling=GREEDY)


async def said(turn: AsyncTurn) -> tuple[list[tuple[int, float]], TurnUsage]:
    """The answer to the bit: its tokens with their log probabilities; and what it cost."""
    told = [pair async for delta in turn for pair in zip(delta.token_ids, delta.logprobs, strict=True)]
    return [(token_id, logprobs.logprob) for token_id, logprobs in told], turn.finished.usage


async def test_a_suspended_session_comes_back_from_below(servers: tuple[ServerProcess, ServerProcess]) -> None:
    async with AsyncSessionClient(servers[0].grpc_target) as client:
        stays = await client.open(system=f"{SYSTEM} Stay.")
        goes = await client.open(system=f"{SYSTEM} Stay.", persistence=PersistencePolicy(Persistence.ON_SUSPEND))
        answers = []
        for session in (goes, stays):
            await ask(session, "Name a town.").wait()
        await stays.close()  # so that nobody shares what is suspended
        suspended = await goes.suspend()
        assert suspended.device_blocks_freed > 0
        assert suspended.tokens_by_tier.disk + suspended.tokens_by_tier.host > 0
        known = goes.view.num_tokens
        answers.append(await said(ask(goes, "And another one.")))
        sources = answers[0][1].tokens_by_source
        assert sources.host + sources.disk >= 0.9 * known
        assert sources.device + sources.computed <= answers[0][1].prompt_tokens - 0.9 * known

        again = await client.open(system=f"{SYSTEM} Stay.")
        await ask(again, "Name a town.").wait()
        answers.append(await said(ask(again, "And another one.")))
        assert answers[0][0] == answers[1][0]

        await goes.suspend()
        estimate = await goes.resume()
        assert estimate.tokens_to_compute <= 16
        assert estimate.seconds >= 0


async def test_an_exported_session_goes_on_elsewhere(
    servers: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    """llama.cpp #26676: what a restore says that it restored is what the next turn hits."""
    one, two = servers
    file, log_alone = tmp_path / "session", tmp_path / "log"
    async with (
        AsyncSessionClient(one.grpc_target, tenant="a") as here,
        AsyncSessionClient(two.grpc_target, tenant="a") as there,
        AsyncSessionClient(two.grpc_target, tenant="b") as stranger,
    ):
        session = await here.open(system=SYSTEM)
        await ask(session, "Name a river.").wait()
        size = await session.export_to(file)
        assert await session.export_to(log_alone, without_kv=True) < size / 10
        with pytest.raises(RequestError, match="tenant"):
            await stranger.import_session(file)
        copy, imported = await there.import_session(file)
        assert imported.kv_refused == ""
        assert imported.kv_tokens >= 0.9 * session.view.num_tokens
        computed, _ = await there.import_session(log_alone)
        expected, _ = await said(ask(session, "And a lake."))
        moved, usage = await said(ask(copy, "And a lake."))
        assert moved == expected
        assert usage.tokens_by_source.cached >= 0.9 * session.view.num_tokens - 20
        assert (await said(ask(computed, "And a lake.")))[0] == expected
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(RequestError, match="byte"):
            await there.import_session(file)


async def test_the_policy_decides_what_outlives_a_kill(servers: tuple[ServerProcess, ServerProcess]) -> None:
    """kill -9: the log is there in any case; KV is where the session's policy put it, and usage says so."""
    server = servers[1]
    policies = {
        Persistence.NONE: PersistencePolicy(Persistence.NONE),
        Persistence.ON_SUSPEND: PersistencePolicy(Persistence.ON_SUSPEND),
        Persistence.ON_IDLE: PersistencePolicy(Persistence.ON_IDLE, 0.0),
        Persistence.ALWAYS: PersistencePolicy(Persistence.ALWAYS),
    }
    before = await bytes_on_disk(server)
    patient = RetryPolicy(max_attempts=1000, longest_delay_s=0.5)
    async with AsyncSessionClient(server.grpc_target, retry=patient) as client:
        sessions = {}
        for policy, how in policies.items():
            session = sessions[policy] = await client.open(system=f"{policy.value}. {SYSTEM}", persistence=how)
            await ask(session, "Name a hill.").wait()
        await sessions[Persistence.NONE].suspend()
        await sessions[Persistence.ON_SUSPEND].suspend()
        written = sum(session.view.num_tokens for policy, session in sessions.items() if policy is not Persistence.NONE)
        await disk_holds(server, before + 0.97 * written / 16 * BLOCK_BYTES)
        server.kill()
        server.launch()
        await asyncio.to_thread(server.wait_ready)
        for policy, session in sessions.items():
            known = session.view.num_tokens
            _, usage = await said(ask(session, "Name a tree."))
            sources = usage.tokens_by_source
            if policy is Persistence.NONE:
                assert sources.computed == usage.prompt_tokens
                assert usage.missed.other_engine >= known - 1
            else:
                assert sources.disk >= 0.95 * known, (policy, usage)


async def disk_holds(server: ServerProcess, num_bytes: float) -> None:
    """Wait until the disk tier has so many bytes: it is written behind the turns."""
    while await bytes_on_disk(server) < num_bytes:
        await asyncio.sleep(0.2)


async def bytes_on_disk(server: ServerProcess) -> int:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        tiers = (await client.get("/v1/cache/tiers")).json()["tiers"]
        return sum(tier["used_bytes"] for tier in tiers if tier["tier"] == "disk")  # none before the first turn


def test_the_example_of_a_tool_loop(servers: tuple[ServerProcess, ServerProcess]) -> None:
    """docs/sessions.md shows it; each turn computes what is new and nothing else."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "tool_loop.py"), servers[0].grpc_target],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".import-root")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, call, second, answer = done.stdout.splitlines()
    shown = (ROOT / "docs" / "sessions.md").read_text()
    assert call in shown
    assert answer in shown
    _, prompt, _ = numbers_in(first)
    turn, longer, computed = numbers_in(second)
    assert turn == 2
    assert computed < longer - prompt + 5  # what is new, and the last token, which never was an input


def numbers_in(line: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", line)]
