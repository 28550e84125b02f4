"""Order, history, salts, failures and stops of a load, on a driver that answers at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from sessile.bench_agent.driver.ask import Ask, Conversation, ServerBusy, ServerUnreachable, TurnRefused
from sessile.bench_agent.driver.observation import Observation, Usage
from sessile.bench_agent.errors import BenchError, TargetError
from sessile.bench_agent.load.runner import Ended, LoadRunner, Outcome
from sessile.bench_agent.load.shape import Arrivals, History, LoadShape
from sessile.bench_agent.load.warm_up import prefill_speed, warm_up
from sessile.bench_agent.metrics.records import TurnStatus
from sessile.bench_agent.workload.plan import Message, MessagesPrompt, SessionPlan, TextPrompt, Turn, Workload
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload


class FakeDriver:
    """Answers ``re:`` and the last message. ``fault`` may raise for a turn, ``pause`` waits in it."""

    wire = "fake"

    def __init__(
        self,
        fault: Callable[[Ask, int], Exception | None] = lambda ask, attempt: None,
        pause: Callable[[Ask], float] = lambda ask: 0.0,
    ) -> None:
        self.fault = fault
        self.pause = pause
        self.asks: list[Ask] = []
        self.running = 0
        self.most_running = 0
        self.closed = 0

    def conversation(self, session_id: str) -> Conversation:
        return FakeConversation(self)

    async def close(self) -> None:
        pass


class FakeConversation:
    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.attempts: dict[int, int] = {}

    async def turn(self, ask: Ask, seen: Observation) -> None:
        driver = self.driver
        seen.started = seen.started or seen.clock()
        attempt = self.attempts[ask.index] = self.attempts.get(ask.index, 0) + 1
        driver.running += 1
        driver.most_running = max(driver.most_running, driver.running)
        try:
            await asyncio.sleep(driver.pause(ask))
            error = driver.fault(ask, attempt)
            if error is not None:
                raise error
            driver.asks.append(ask)
            said = ask.text if ask.text is not None else ask.conversation[-1].content
            seen.arrived(f"re:{said}")
            seen.usage = Usage(prompt_tokens=10, completion_tokens=1, cached_tokens=4)
        finally:
            driver.running -= 1
            seen.ended = seen.clock()

    async def close(self) -> None:
        self.driver.closed += 1


def said(text: str, **more: object) -> Turn:
    return Turn(prompt=MessagesPrompt((Message("user", text),)), output_tokens=3, **more)


def workload(*turns: Turn, sessions: int = 1) -> Workload:
    plans = tuple(SessionPlan(session_id=f"s{number}", turns=turns) for number in range(sessions))
    return Workload(name="w", format="native", sessions=plans)


async def run(work: Workload, driver: FakeDriver, **shape: object) -> Outcome:
    return await LoadRunner(work, driver, LoadShape(**shape)).run()


async def test_a_conversation_grows_by_the_servers_own_answers() -> None:
    driver = FakeDriver()
    outcome = await run(
        workload(said("a"), said("b", continues=0, after=(0,)), said("c", continues=0, after=(1,))), driver
    )
    assert [[m.content for m in ask.conversation] for ask in driver.asks] == [
        ["a"],
        ["a", "re:a", "b"],
        ["a", "re:a", "c"],
    ]
    assert [ask.closes_branch for ask in driver.asks] == [True, False, True]
    assert outcome.ended is Ended.DONE and driver.closed == 1
    assert [turn.first for turn in outcome.turns] == [True, False, False]
    assert outcome.sessions[0].ok and outcome.sessions[0].turns == 3


async def test_recorded_answers_on_request() -> None:
    turns = (
        said("a", recorded=Message("assistant", "A")),
        Turn(prompt=MessagesPrompt((Message("tool", "out", (), "c1"),)), continues=0, after=(0,)),
    )
    driver = FakeDriver()
    await run(workload(*turns), driver, history=History.RECORDED)
    assert [message.role for message in driver.asks[1].conversation] == ["user", "assistant", "tool"]
    assert driver.asks[1].conversation[1].content == "A"
    driver = FakeDriver()
    await run(workload(*turns), driver)
    assert driver.asks[1].conversation[2] == Message("user", "Tool result:\nout")


async def test_turns_wait_for_what_they_come_after_and_others_overlap() -> None:
    turns = (said("main"), said("x", after=(0,)), said("y", after=(0,)), said("end", continues=0, after=(0, 1, 2)))
    driver = FakeDriver(pause=lambda ask: 0.02)
    await run(workload(*turns), driver)
    assert driver.most_running == 2
    assert [ask.index for ask in driver.asks] == [0, 1, 2, 3]


async def test_concurrency_is_kept() -> None:
    driver = FakeDriver(pause=lambda ask: 0.005)
    outcome = await run(workload(said("a"), sessions=9), driver, concurrency=3)
    assert driver.most_running == 3
    assert len(outcome.sessions) == 9


async def test_gaps_are_waited_out() -> None:
    outcome = await run(workload(said("a"), said("b", continues=0, after=(0,), gap_s=0.05)), FakeDriver())
    first, second = outcome.turns
    assert second.started_s - first.ended_s >= 0.05


async def test_repeats_differ_in_their_first_line_only() -> None:
    driver = FakeDriver()
    outcome = await run(workload(said("a"), Turn(prompt=TextPrompt("t"), after=(0,))), driver, repeats=2, seed=5)
    assert driver.asks[0].conversation[0].content == "[run 1, seed 5]\na"
    assert driver.asks[3].text == "[run 2, seed 5]\nt"
    assert [repeat.repeat for repeat in outcome.repeats] == [0, 1]


async def test_a_duration_runs_sessions_again() -> None:
    driver = FakeDriver(pause=lambda ask: 0.01)
    outcome = await run(workload(said("a")), driver, duration_s=0.15)
    names = {turn.session for turn in outcome.turns}
    assert {"s0", "s0~1", "s0~2"} <= names
    assert outcome.ended is Ended.DONE


@pytest.mark.parametrize("arrivals", [Arrivals.CONSTANT, Arrivals.POISSON])
async def test_arrivals_at_a_rate(arrivals: Arrivals) -> None:
    outcome = await run(workload(said("a"), sessions=8), FakeDriver(), arrivals=arrivals, rate=100.0, seed=3)
    starts = [turn.started_s for turn in outcome.turns]
    assert starts == sorted(starts)
    if arrivals is Arrivals.CONSTANT:
        assert starts[-1] >= 0.07


async def test_arrivals_of_the_trace() -> None:
    plans = tuple(SessionPlan(session_id=str(n), turns=(said("a"),), arrival_s=float(n)) for n in range(3))
    work = Workload(name="w", format="native", sessions=plans)
    outcome = await run(work, FakeDriver(), arrivals=Arrivals.TRACE, speedup=20.0)
    assert outcome.turns[0].started_s < outcome.turns[1].started_s
    assert outcome.turns[2].started_s >= 0.1


async def test_a_busy_server_is_asked_again_and_counted() -> None:
    driver = FakeDriver(fault=lambda ask, attempt: ServerBusy("later", retry_after_s=0.01) if attempt < 3 else None)
    outcome = await run(workload(said("a")), driver)
    assert (outcome.turns[0].status, outcome.turns[0].retries) == (TurnStatus.OK, 2)


async def test_a_refused_turn_fails_and_what_builds_on_it_is_skipped() -> None:
    driver = FakeDriver(fault=lambda ask, attempt: TurnRefused("no") if ask.index == 1 else None)
    turns = (said("a"), said("b", continues=0, after=(0,)), said("c", continues=1, after=(1,)), said("d", after=(0,)))
    outcome = await run(workload(*turns), driver)
    found = {turn.turn: turn.status for turn in outcome.turns}
    assert found == {0: TurnStatus.OK, 1: TurnStatus.ERROR, 2: TurnStatus.SKIPPED, 3: TurnStatus.OK}
    assert not outcome.sessions[0].ok
    assert outcome.ended is Ended.DONE


async def test_a_dead_server_ends_the_run_and_what_there_is_is_kept() -> None:
    sent = 0

    def fault(ask: Ask, attempt: int) -> Exception | None:
        nonlocal sent
        sent += 1
        return None if sent <= 4 else ServerUnreachable("gone", retry_after_s=0.001)

    outcome = await run(workload(said("a"), sessions=50), FakeDriver(fault=fault), retries=1)
    assert outcome.ended is Ended.SERVER_LOST
    assert sum(turn.status is TurnStatus.OK for turn in outcome.turns) == 4
    assert sum(turn.status is TurnStatus.UNREACHABLE for turn in outcome.turns) == 3
    assert not outcome.repeats[0].complete


@pytest.mark.parametrize(("there", "ended"), [(False, Ended.SERVER_LOST), (True, Ended.DONE)])
async def test_a_server_that_dies_under_the_last_sessions_is_looked_for(there: bool, ended: Ended) -> None:
    """Too few turns are left to tell by their number."""

    async def is_there() -> bool:
        return there

    driver = FakeDriver(fault=lambda ask, attempt: ServerUnreachable("broken") if ask.index == 1 else None)
    work = workload(said("a"), said("b", continues=0, after=(0,)), sessions=2)
    shape = LoadShape(concurrency=2, retries=0, repeats=2)
    outcome = await LoadRunner(work, driver, shape, is_there=is_there).run()
    assert outcome.ended is ended
    assert [repeat.complete for repeat in outcome.repeats] == ([True, True] if there else [False])


async def test_turns_that_break_off_together_are_one_sign_of_a_dead_server() -> None:
    """It came back at once: the sessions after those that were under way are whole."""
    sent = 0

    def fault(ask: Ask, attempt: int) -> Exception | None:
        nonlocal sent
        sent += 1
        return ServerUnreachable("restarted") if sent <= 8 else None

    driver = FakeDriver(fault=fault, pause=lambda ask: 0.01)
    outcome = await run(workload(said("a"), sessions=12), driver, concurrency=8, retries=0)
    assert outcome.ended is Ended.DONE
    assert sum(turn.status is TurnStatus.OK for turn in outcome.turns) == 4


async def test_a_server_that_asks_for_an_hour_is_not_waited_for() -> None:
    driver = FakeDriver(fault=lambda ask, attempt: ServerBusy("later", retry_after_s=3600.0))
    outcome = await run(workload(said("a")), driver)
    assert (outcome.turns[0].status, outcome.turns[0].retries) == (TurnStatus.ERROR, 0)


async def test_a_busy_server_is_warmed_up_all_the_same() -> None:
    def fault(ask: Ask, attempt: int) -> Exception | None:
        if attempt == 1:
            return ServerBusy("later", retry_after_s=0.001)
        return TurnRefused("not this one") if "number 0" in ask.conversation[0].content else None

    driver = FakeDriver(fault=fault)
    await warm_up(driver, 2, retries=1)
    assert len(driver.asks) == 1
    with pytest.raises(TargetError, match="not this one"):
        await warm_up(driver, 1, retries=1)


async def test_cold_prompts_that_fail_leave_the_run_without_a_hit_rate_by_time() -> None:
    driver = FakeDriver(fault=lambda ask, attempt: TurnRefused("too long"))
    assert await prefill_speed(driver, None, retries=0) is None


async def test_a_stop_keeps_what_there_is_and_marks_what_ran() -> None:
    stop = asyncio.Event()
    driver = FakeDriver(pause=lambda ask: 0.0 if ask.index == 0 else 30.0)
    work = workload(said("a"), said("b", continues=0, after=(0,)), sessions=2)
    runner = LoadRunner(
        work,
        driver,
        LoadShape(concurrency=2, repeats=3),
        watch=lambda turn: asyncio.get_running_loop().call_later(0.05, stop.set) and None,
    )
    outcome = await runner.run(stop)
    assert outcome.ended is Ended.INTERRUPTED
    assert sorted(turn.status for turn in outcome.turns) == [TurnStatus.INTERRUPTED] * 2 + [TurnStatus.OK] * 2
    assert [(repeat.repeat, repeat.complete) for repeat in outcome.repeats] == [(0, False)]
    assert driver.closed == 2


async def test_reusable_shares_are_filled_in() -> None:
    work = synthetic_workload("w", preset("agent-load"), sessions=2, seed=0)
    outcome = await run(work, FakeDriver())
    shares = [turn.reusable_share for turn in outcome.turns]
    assert shares[0] == 0.0
    assert all(share is not None and share > 0.85 for share in shares[1:6])
    assert shares[6] is not None and shares[6] > 0.9  # the other session has the same system prompt


@pytest.mark.parametrize(
    "shape",
    [
        {"concurrency": 0},
        {"arrivals": Arrivals.POISSON},
        {"arrivals": Arrivals.POISSON, "rate": -1.0},
        {"arrivals": Arrivals.CONSTANT, "rate": math.nan},
        {"arrivals": Arrivals.CONSTANT, "rate": math.inf},
        {"arrivals": Arrivals.CONSTANT, "rate": 1.0, "concurrency": 2},
        {"arrivals": Arrivals.CONSTANT, "rate": 1.0, "ramp_s": 2.0},
        {"arrivals": Arrivals.TRACE, "rate": 1.0},
        {"rate": 1.0},
        {"speedup": 2.0},
        {"arrivals": Arrivals.TRACE, "speedup": 0.0},
        {"repeats": 0},
        {"retries": -1},
        {"ramp_s": -1.0},
        {"ramp_s": math.nan},
        {"duration_s": 0.0},
        {"temperature": -0.1},
    ],
)
def test_impossible_loads(shape: dict[str, object]) -> None:
    with pytest.raises(BenchError):
        LoadShape(**shape).check()
