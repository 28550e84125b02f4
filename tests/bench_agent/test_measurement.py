"""A measurement that breaks off leaves no meter running."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from sessile.bench_agent.driver.ask import Ask, Conversation
from sessile.bench_agent.driver.observation import Observation
from sessile.bench_agent.load.runner import Ended
from sessile.bench_agent.load.shape import LoadShape
from sessile.bench_agent.measurement import Measurement, measure
from sessile.bench_agent.metrics.records import TurnRecord
from sessile.bench_agent.metrics.summary import Judgement
from sessile.bench_agent.report.record import RECORD_FILE, TURNS_FILE, ServerFacts, read_record
from sessile.bench_agent.targets.target import Target
from sessile.bench_agent.workload.adjust import Adjustments
from sessile.bench_agent.workload.plan import Message, MessagesPrompt, SessionPlan, Turn, Workload


class Gated:
    """A driver, and its one conversation, whose turns wait for ``gate``."""

    wire = "fake"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()

    def conversation(self, session_id: str) -> Conversation:
        return self

    async def turn(self, ask: Ask, seen: Observation) -> None:
        seen.started = seen.clock()
        self.asked.set()
        await self.gate.wait()
        seen.arrived("x")
        seen.ended = seen.clock()

    async def close(self) -> None:
        pass


def target(driver: Gated) -> Target:
    facts = ServerFacts(
        name=None, version=None, model=None, quantisation=None, flags=None, address="x", wire="fake", dialect="openai"
    )
    return Target(facts=facts, driver=driver, pid=os.getpid(), context_length=None, is_there=there)


async def there() -> bool:
    return True


def plan(warm_up_turns: int) -> Measurement:
    turns = (Turn(prompt=MessagesPrompt((Message("user", "hi"),)), output_tokens=1),)
    return Measurement(
        label="x",
        workload=Workload(name="w", format="native", sessions=(SessionPlan(session_id="s", turns=turns),)),
        adjustments=Adjustments(),
        load=LoadShape(),
        judgement=Judgement(),
        git_revision=None,
        warm_up_turns=warm_up_turns,
        calibrate=False,
        null_seconds=0.0,
    )


def left() -> tuple[set[str], int]:
    """Meters' threads, and tasks beside the test's own."""
    return {thread.name for thread in threading.enumerate()} & {"process-meter"}, len(asyncio.all_tasks()) - 1


async def test_a_full_disk_ends_the_run_and_the_record_says_so(tmp_path: Path) -> None:
    (tmp_path / TURNS_FILE).symlink_to("/dev/full")
    driver = Gated()
    driver.gate.set()
    record = await measure(plan(0), target(driver), tmp_path)
    assert (record.complete, record.ended) == (False, Ended.NOT_KEPT)
    assert read_record(tmp_path) == record


async def test_a_record_of_another_run_does_not_stay_beside_new_turns(tmp_path: Path) -> None:
    driver = Gated()
    driver.gate.set()
    await measure(plan(0), target(driver), tmp_path)

    def fails(record: TurnRecord) -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await measure(plan(0), target(driver), tmp_path, watch=fails)
    assert not (tmp_path / RECORD_FILE).exists()


async def test_when_a_watcher_fails(tmp_path: Path) -> None:
    def fails(record: TurnRecord) -> None:
        raise ZeroDivisionError

    driver = Gated()
    driver.gate.set()
    with pytest.raises(ExceptionGroup):
        await measure(plan(0), target(driver), tmp_path, watch=fails)
    assert left() == (set(), 0)


@pytest.mark.parametrize("warm_up_turns", [0, 1])
async def test_when_it_is_cancelled(tmp_path: Path, warm_up_turns: int) -> None:
    """During the load, and during what comes before it."""
    driver = Gated()
    measuring = asyncio.ensure_future(measure(plan(warm_up_turns), target(driver), tmp_path))
    await driver.asked.wait()
    measuring.cancel()
    await asyncio.wait((measuring,))
    assert measuring.cancelled()
    assert left() == (set(), 0)
