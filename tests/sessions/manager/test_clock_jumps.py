"""The machine's clock is set, by years: what is waited for and what is kept does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from manager_bench import Bench

from sessile.sessions.copies.copies import EVERY_S, DataCopies
from sessile.sessions.keeping import Persistence, PersistencePolicy
from sessile.sessions.manager import CloseRequest, SessionManager

YEARS = 10 * 365 * 86_400.0


@dataclass
class Clocks:
    """The wall's and the steady one, each moved by hand."""

    wall: float = 1_800_000_000.0
    steady: float = 50.0

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def bench(tmp_path: Path, clocks: Clocks) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.start()
    bench.manager.shutdown()
    bench.manager = SessionManager(
        bench.store,
        bench.engine,
        bench.tokenizer,
        bench.template,
        clock=lambda: clocks.wall,
        steady=lambda: clocks.steady,
    )
    yield bench
    bench.stop()


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
async def test_a_tool_took_as_long_as_it_took(bench: Bench, clocks: Clocks, jump: float) -> None:
    session = await bench.open()
    latencies = bench.manager.care.latencies
    for _ in range(8):
        await bench.say(session.session_id, "run it")
        clocks.wall += jump
        clocks.pass_s(3.0)
        bench.manager.care._waits[session.session_id] = _waiting_for("grep", bench, session.session_id)
        await bench.say(session.session_id, None, input=_result())
    found = latencies.expected_idle_s("", "grep")
    assert found is not None
    assert found[0] == pytest.approx(3.0, rel=0.5)


def _waiting_for(tool: str, bench: Bench, session_id: str):
    wait = bench.manager.care._waits[session_id]
    return type(wait)(wait.since, {"call_1": tool})


def _result():
    from sessile.sessions.manager.requests import ToolResultInput

    return ToolResultInput("call_1", "found", "grep")


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
async def test_a_session_is_idle_after_the_time_that_passed(bench: Bench, clocks: Clocks, jump: float) -> None:
    session = await bench.open(persistence=PersistencePolicy(Persistence.ON_IDLE, 60.0))
    await bench.say(session.session_id, "hi")
    clocks.wall += jump
    clocks.pass_s(59.0)
    assert bench.manager.care.idle._take_due() == []
    clocks.pass_s(2.0)
    assert bench.manager.care.idle._take_due() == [session.session_id]


async def test_a_clock_set_forward_deletes_nothing_before_its_time(bench: Bench, clocks: Clocks) -> None:
    """Answers to request ids, closed sessions and conversations are forgotten a week after their last use."""
    session = await bench.open(request_id="open it")
    await bench.manager.close(CloseRequest(session_id=session.session_id, request_id="close it"))
    clocks.wall += YEARS
    clocks.pass_s(2 * 3600.0)
    await bench.open()  # a change: now and then it is followed by deletions
    assert (await bench.open(request_id="open it")).session_id == session.session_id, (
        "the same request, the same answer"
    )
    assert await bench.store.session(session.session_id) is not None
    clocks.pass_s(8 * 86_400.0)
    await bench.open()
    assert await bench.store.prune(0.0) == 0  # behind what was asked before
    assert await bench.store.session(session.session_id) is None, "deleted when its week had really passed"


async def test_a_clock_set_back_does_not_stop_the_deletions(bench: Bench, clocks: Clocks) -> None:
    await bench.open()
    clocks.wall -= YEARS
    session = await bench.open()
    await bench.manager.close(CloseRequest(session_id=session.session_id))
    clocks.pass_s(8 * 86_400.0)
    await bench.open()
    assert await bench.store.prune(0.0) == 0
    assert await bench.store.session(session.session_id) is None


def test_copies_go_on_and_the_newest_is_the_one_made_last(tmp_path: Path, clocks: Clocks) -> None:
    bench = Bench(tmp_path)
    bench.start()
    copies = DataCopies(tmp_path, lambda: clocks.wall)
    first, second = copies.make(), copies.make()
    assert first != second
    clocks.wall -= YEARS
    assert copies.is_due()
    third = copies.make()
    assert copies.all() == [third, second]
    assert not copies.is_due()
    clocks.wall += EVERY_S
    assert copies.is_due()
    bench.stop()
