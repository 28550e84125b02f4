"""The engine as a real process: turns, bad input, and the death of either side."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import psutil
import pytest
from tiny_engine import tiny_engine_config
from tiny_llama import VOCAB

from sessile.server.engine.client import EngineClient
from sessile.server.engine.messages import FinishReason, Priority, SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.supervisor import EngineState
from sessile.sessions.errors import CapacityError, ContextOverflow, DeadlineExceeded, EngineError, RequestError

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [(7 * i + 3) % VOCAB for i in range(40)]


def turn(turn_id: str, max_tokens: int = 12, token_ids: list[int] | None = None, **sampling) -> SubmitTurn:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, **sampling})
    return SubmitTurn(turn_id=turn_id, token_ids=PROMPT if token_ids is None else token_ids, sampling=params)


async def collect(engine: EngineClient, submitted: SubmitTurn) -> tuple[list[int], TurnOutput]:
    tokens: list[int] = []
    async for output in engine.generate(submitted):
        tokens += output.token_ids
    return tokens, output


async def until(condition) -> None:
    """Wait for another process; the test's own timeout is the bound."""
    while not condition():
        await asyncio.sleep(0.01)


async def test_turns_run_side_by_side_and_share(engine: EngineClient) -> None:
    alone, _ = await collect(engine, turn("alone"))
    results = await asyncio.gather(*(collect(engine, turn(f"t{i}")) for i in range(6)))
    for tokens, last in results:
        assert tokens == alone
        assert last.finish_reason is FinishReason.LENGTH
        assert last.usage is not None
        assert last.usage.tokens_by_source.device == len(PROMPT) - 1
    await until(lambda: engine.stats.running == 0)
    assert engine.stats.running == engine.stats.waiting == 0


async def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(engine: EngineClient) -> None:
    alone = [await collect(engine, turn(f"a{i}", temperature=1.0, seed=i)) for i in range(4)]
    batch = await asyncio.gather(*(collect(engine, turn(f"b{i}", temperature=1.0, seed=i)) for i in range(4)))
    assert [tokens for tokens, _ in alone] == [tokens for tokens, _ in batch]
    assert len({tuple(tokens) for tokens, _ in alone}) > 1


async def test_kill_9_of_the_engine_fails_its_turns_and_a_new_one_goes_on(engine: EngineClient) -> None:
    expected, _ = await collect(engine, turn("before"))
    restarts = engine.restarts
    running = engine.generate(turn("long", max_tokens=1500))
    await anext(running)
    first_pid = engine.pid
    assert first_pid is not None
    os.kill(first_pid, signal.SIGKILL)
    with pytest.raises(EngineError) as raised:
        async for _ in running:
            pass
    assert raised.value.retry_after_s is not None
    await until(lambda: engine.state is EngineState.READY and engine.pid != first_pid)
    tokens, last = await collect(engine, turn("after"))
    assert tokens == expected
    assert last.usage is not None
    assert last.usage.tokens_by_source.computed == len(PROMPT)
    assert engine.restarts == restarts + 1


async def test_closing_the_iterator_aborts_the_turn(engine: EngineClient) -> None:
    running = engine.generate(turn("long", max_tokens=1500))
    await anext(running)
    await running.aclose()
    await collect(engine, turn("next", max_tokens=1))
    await until(lambda: engine.stats.running == 0)


async def test_abort_ends_a_turn_with_its_usage(engine: EngineClient) -> None:
    running = engine.generate(turn("long", max_tokens=1500))
    await anext(running)
    await engine.abort("long")
    outputs = [output async for output in running]
    assert outputs[-1].finish_reason is FinishReason.ABORTED
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.completion_tokens < 1500


async def test_a_turn_whose_deadline_passed_while_it_waited_says_so(engine: EngineClient) -> None:
    with pytest.raises(DeadlineExceeded) as raised:
        await collect(engine, msgspec.structs.replace(turn("late"), deadline_s=0.0))
    assert "deadline" in raised.value.message and raised.value.remedy
    assert engine.stats.queues[Priority.INTERACTIVE].expired >= 1
    assert len((await collect(engine, turn("late")))[0]) == 12, "its id is free again"


@pytest.mark.parametrize(
    ("submitted", "error", "field"),
    [
        (turn("x", token_ids=[]), RequestError, "prompt"),
        (turn("x", token_ids=[VOCAB]), RequestError, "token_ids"),
        (turn("x", token_ids=[-1]), RequestError, "token_ids"),
        (turn("x", token_ids=[1] * 4000), ContextOverflow, "prompt"),
        (turn("x", temperature=float("nan")), RequestError, "temperature"),
        (turn("x", stop_token_ids=(VOCAB,)), RequestError, "stop_token_ids"),
        (turn("x", logit_bias={VOCAB: 1.0}), RequestError, "logit_bias"),
    ],
)
async def test_bad_turns_are_refused_and_the_engine_goes_on(
    engine: EngineClient, submitted: SubmitTurn, error: type[RequestError], field: str
) -> None:
    with pytest.raises(error) as raised:
        await collect(engine, submitted)
    assert raised.value.field == field
    assert len((await collect(engine, turn("good")))[0]) == 12


async def test_too_many_turns_are_refused_with_a_retry_time(folder: Path) -> None:
    engine = EngineClient(tiny_engine_config(folder, max_waiting=1))
    await engine.start()
    running = engine.generate(turn("long", max_tokens=1500))
    await anext(running)
    with pytest.raises(CapacityError) as raised:
        await collect(engine, turn("second"))
    assert raised.value.retry_after_s is not None
    await running.aclose()
    await engine.close()


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    engine = EngineClient(tiny_engine_config(tmp_path / "nowhere"))
    with pytest.raises(EngineError) as raised:
        await engine.start()
    assert "nowhere" in raised.value.message
    assert raised.value.remedy


async def test_a_pool_too_small_for_one_block_is_refused(folder: Path) -> None:
    engine = EngineClient(tiny_engine_config(folder, kv_memory_bytes=100))
    with pytest.raises(EngineError) as raised:
        await engine.start()
    assert "kv_memory_bytes" in raised.value.message


async def test_the_engine_leaves_when_the_front_is_killed(folder: Path) -> None:
    script = textwrap.dedent("""
        import asyncio, sys
        import msgspec
        from sessile.server.engine.client import EngineClient
        from sessile.server.engine.engine_config import EngineConfig

        async def main():
            client = EngineClient(msgspec.json.decode(sys.argv[1], type=EngineConfig))
            await client.start()
            print(client.pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """)
    front = subprocess.Popen(  # noqa: ASYNC220 - a moment, in a test
        [sys.executable, "-c", script, msgspec.json.encode(tiny_engine_config(folder)).decode()],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".import-root")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert front.stdout is not None
    pid = int(await asyncio.to_thread(front.stdout.readline))
    child = psutil.Process(pid)
    front.kill()
    front.wait()
    front.stdout.close()
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_an_engine_that_is_closed_while_it_starts_ends_the_start(folder: Path) -> None:
    engine = EngineClient(tiny_engine_config(folder))
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.pid is not None)
    await engine.close()
    with pytest.raises(EngineError):
        await asyncio.wait_for(starting, 5)


async def test_a_restart_that_fails_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not there for a moment, a folder that is away: the engine has worked and may work again."""
    monkeypatch.setattr("sessile.server.engine.supervisor.RESTART_DELAYS_S", (0.0,))
    engine = EngineClient(tiny_engine_config(folder))
    await engine.start()
    away = folder.rename(folder.with_name("away"))  # noqa: ASYNC240 - a moment, in a test
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 2)
    with pytest.raises(EngineError) as raised:
        await collect(engine, turn("early"))
    assert raised.value.retry_after_s is not None
    away.rename(folder)
    await until(lambda: engine.state is EngineState.READY)
    assert (await collect(engine, turn("late")))[0]
    await engine.close()
