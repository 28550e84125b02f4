"""Everything that the observatory remembers is bounded, however many sessions and tenants there are."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from observed_turns import run_turn

from sessile.server.engine.messages import (
    FinishReason,
    MissedTokens,
    SubmitTurn,
    TokensBySource,
    TurnOutput,
    TurnUsage,
)
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.turn_watch import TurnWatch
from sessile.server.observe import miss_explainer, observatory, reuse_counts, timeline
from sessile.server.observe.miss_explainer import MissExplainer, Question
from sessile.server.observe.miss_log import MAX_MISSES, LoggedMiss, MissLog
from sessile.server.observe.observatory import Observatory
from sessile.sessions.manager.turn_events import Miss


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch):
    """An observatory that remembers a little."""
    monkeypatch.setattr(timeline, "MAX_SESSIONS", 30)
    monkeypatch.setattr(timeline, "MAX_MARKS", 100)
    monkeypatch.setattr(timeline, "KEPT_TURNS", 3)
    monkeypatch.setattr(reuse_counts, "MAX_SESSIONS", 20)
    monkeypatch.setattr(reuse_counts, "MAX_WINDOWED_SESSIONS", 5)
    monkeypatch.setattr(observatory, "MAX_ENDED", 50)
    made = Observatory(clock=lambda: 10.0)
    yield made
    made.close()


def test_timelines_share_a_budget_of_turns(seen: Observatory) -> None:
    for number in range(400):
        run_turn(seen, str(number), conversation=f"s{number % 7 if number < 200 else number}")
    lines = [line for _, line in seen.timelines.lines.latest(1000)]
    assert len(lines) == 30
    assert sum(len(line.turns) for line in lines) == seen.timelines._num_marks <= 100
    assert sum(line.num_turns for line in lines) >= 30


def test_long_lines_are_shortened_and_the_latest_keeps_its_turns(seen: Observatory) -> None:
    for number in range(300):
        run_turn(seen, str(number), conversation=f"s{number // 60}")
    kept = {name: len(line.turns) for name, line in seen.timelines.lines.latest(9)}
    assert kept["s4"] == 60
    assert kept["s0"] == 3
    assert sum(kept.values()) == seen.timelines._num_marks <= 100


def test_sessions_have_windows_while_they_run(seen: Observatory) -> None:
    for number in range(25):
        run_turn(seen, str(number), conversation=f"s{number}")
    assert len(seen.reuse.sessions) == 20
    assert seen.reuse.session_windows("s0") == {}
    of_old, of_new = seen.reuse.session_windows("s10"), seen.reuse.session_windows("s24")
    assert {name: counts.turns for name, counts in of_old.items()} == {"1m": 0, "5m": 0, "1h": 0, "start": 1}
    assert {name: counts.turns for name, counts in of_new.items()} == {"1m": 1, "5m": 1, "1h": 1, "start": 1}
    assert [name for name, _ in seen.reuse.latest_sessions(2)] == ["s24", "s23"]


def test_tenants_share_a_budget_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(miss_explainer, "ALL_KEPT_CHARS", 10_000)
    explainer = MissExplainer()
    body = {"messages": [{"role": "user", "content": "x" * 3000}]}
    for number in range(40):
        explainer.ask(Question(str(number), f"tenant-{number % 12}", None, body.copy))
    explainer.settle(30)
    assert sum(one.kept_chars for one in explainer._tenants.values()) <= 10_000
    assert next(reversed(explainer._tenants)) in ("tenant-3", "")
    explainer.close()


def body_at(clock: str, *turns: str) -> dict[str, Any]:
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(turns)]
    rules = "Keep to every rule of the handbook. " * 60
    return {"messages": [{"role": "system", "content": f"It is {clock}.\n{rules}"}, *talk]}


def test_misses_are_bounded_and_all_are_counted() -> None:
    log = MissLog()
    for number in range(MAX_MISSES + 9):
        log.add(
            LoggedMiss(
                turn_id=str(number), at=float(number), tenant="", session="s", model="m",
                prompt_tokens=10, cached_tokens=0, reusable_tokens=0, missed=MissedTokens(),
                miss=Miss(rule="PL101", name="n", explanation="e", remedy="r", lost_tokens=2),
            )
        )  # fmt: skip
    kept = log.latest(10 * MAX_MISSES)
    assert [kept[0].turn_id, kept[-1].turn_id] == [str(MAX_MISSES + 8), "9"]
    assert len(kept) == MAX_MISSES
    assert log.by_rule["PL101"] == MAX_MISSES + 9


def test_a_miss_that_is_explained_after_its_turn_is_listed_all_the_same(seen: Observatory) -> None:
    gate = threading.Event()

    def late() -> dict[str, Any]:
        gate.wait(30)
        return body_at("10:16:40", "a", "b", "c")

    first = asked_turn(seen, "one", lambda: body_at("10:15:02", "a"))
    seen.explainer.settle(30)
    end_turn(seen, first)
    end_turn(seen, asked_turn(seen, "two", late))
    assert seen.miss_of("two") is None
    assert (seen.num_late, seen.misses.latest(9)) == (1, [])
    gate.set()
    seen.explainer.settle(30)
    (miss,) = seen.misses.latest(9)
    assert (miss.turn_id, miss.session, miss.miss.rule) == ("two", "s", "PL101")
    assert len(seen.misses.latest(9)) == 1, "it is listed once"


def test_a_late_turn_is_let_go_without_a_reader(seen: Observatory) -> None:
    gate = threading.Event()

    def late() -> dict[str, Any]:
        gate.wait(30)
        return body_at("10:16:40", "a", "b", "c")

    asked = weakref.ref(late)
    end_turn(seen, asked_turn(seen, "one", late))
    del late
    assert seen.num_late == 1
    gate.set()
    seen.explainer.settle(30)
    assert asked() is not None
    end_turn(seen, asked_turn(seen, "two", lambda: body_at("10:16:41", "a")))
    seen.explainer.settle(30)
    assert asked() is None


def asked_turn(seen: Observatory, turn_id: str, content: Callable[[], dict[str, Any]]) -> SubmitTurn:
    turn = SubmitTurn(turn_id=turn_id, token_ids=list(range(700)), sampling=SamplingParams(), owner="s")
    seen.asked(turn, "s", "", content)
    return turn


def end_turn(seen: Observatory, turn: SubmitTurn) -> None:
    seen.turn_started(turn)
    watch = TurnWatch(lambda: 1.0)
    watch.absorb(final_output(turn.turn_id))
    seen.turn_ended(turn, watch)


def final_output(turn_id: str) -> TurnOutput:
    usage = TurnUsage(
        prompt_tokens=700, completion_tokens=1, tokens_by_source=TokensBySource(device=10, computed=690),
        reusable_tokens=10,
    )  # fmt: skip
    return TurnOutput(turn_id=turn_id, token_ids=[1], finish_reason=FinishReason.STOP, usage=usage)
