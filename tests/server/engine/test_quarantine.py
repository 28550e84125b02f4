"""Who is refused after a crash, and who is not."""

from __future__ import annotations

import asyncio

import pytest
from set_clock import SetClock

from sessile.server.engine import quarantine as module
from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.quarantine import Quarantine
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.errors import RequestError

pytestmark = pytest.mark.asyncio


def turn(turn_id: str, first_token: int, seed: int | None = None) -> SubmitTurn:
    return SubmitTurn(turn_id=turn_id, token_ids=[first_token, 2, 3], sampling=SamplingParams(seed=seed))


async def admit(quarantine: Quarantine, asked: SubmitTurn) -> None:
    async with quarantine.admitted(asked):
        pass


async def test_a_turn_that_was_there_at_two_crashes_is_refused_under_any_id_and_seed() -> None:
    quarantine = Quarantine(SetClock())
    quarantine.crashed([turn("a", 1, seed=5)])
    await admit(quarantine, turn("b", 1, seed=6))
    quarantine.crashed([turn("b", 1, seed=6)])
    with pytest.raises(RequestError, match="crashed 2 times") as refused:
        await admit(quarantine, turn("c", 1))
    assert refused.value.field == "prompt"
    assert "15 min" in str(refused.value)
    assert quarantine.num_refused == 1
    await admit(quarantine, turn("d", 9))


async def test_suspects_run_one_at_a_time_so_that_the_next_crash_tells_them_apart() -> None:
    quarantine = Quarantine(SetClock())
    poison, innocent = turn("poison", 1), turn("innocent", 2)
    quarantine.crashed([poison, innocent])
    order: list[str] = []

    async def run(asked: SubmitTurn, release: asyncio.Event) -> None:
        async with quarantine.admitted(asked):
            order.append(asked.turn_id)
            await release.wait()
            if asked is poison:
                quarantine.crashed([poison])
            else:
                quarantine.done(asked)

    release = asyncio.Event()
    both = [asyncio.create_task(run(asked, release)) for asked in (poison, innocent)]
    await asyncio.sleep(0)
    await admit(quarantine, turn("not a suspect", 3))
    assert order == ["poison"]
    release.set()
    await asyncio.gather(*both)
    assert order == ["poison", "innocent"]
    assert quarantine.num_suspects == 1
    with pytest.raises(RequestError):
        await admit(quarantine, poison)
    await admit(quarantine, innocent)


async def test_a_copy_that_waited_for_the_poison_is_refused_when_that_crashed() -> None:
    quarantine = Quarantine(SetClock())
    quarantine.crashed([turn("first", 1)])
    running = asyncio.Event()
    crash = asyncio.Event()

    async def second() -> None:
        async with quarantine.admitted(turn("second", 1)):
            running.set()
            await crash.wait()
            quarantine.crashed([turn("second", 1)])

    first = asyncio.create_task(second())
    await running.wait()
    copy = asyncio.create_task(admit(quarantine, turn("copy", 1)))
    await asyncio.sleep(0)
    crash.set()
    await first
    with pytest.raises(RequestError):
        await copy


async def test_a_suspicion_ends_with_a_good_end_or_with_time() -> None:
    clock = SetClock()
    quarantine = Quarantine(clock)
    quarantine.crashed([turn("a", 1), turn("b", 2)])
    quarantine.done(turn("a again", 1))
    assert quarantine.num_suspects == 1
    quarantine.crashed([turn("b", 2)])
    clock.now += module.SECONDS - 1
    with pytest.raises(RequestError, match="1 min"):
        await admit(quarantine, turn("b", 2))
    clock.now += 1
    await admit(quarantine, turn("b", 2))
    assert quarantine.num_suspects == 0


async def test_the_suspects_are_bounded() -> None:
    quarantine = Quarantine(SetClock())
    quarantine.crashed(turn("t", token) for token in range(module.CAPACITY + 10))
    assert quarantine.num_suspects == module.CAPACITY
