"""What the observatory makes of what it is told, through a live front."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_front import LiveFront, live_front
from observed_turns import run_turn

from sessile.server.engine.cache_messages import CacheEvent, CacheEventKind, CacheEvents
from sessile.server.engine.messages import MissedTokens, SubmitTurn
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.turn_watch import TurnWatch
from sessile.server.observe.miss_explainer import MAX_WAITING, MissExplainer, Question
from sessile.server.observe.observatory import Observatory
from sessile.server.observe.reuse_counts import (
    SLOT_S,
    WINDOWS_S,
    LatestByName,
    ReuseCounts,
    WindowedCounts,
    parts_of,
)
from sessile.sessions.manager.requests import GenerateRequest, MessagesInput, OpenSession
from sessile.sessions.manager.turn_events import TurnFinished
from sessile.sessions.messages import Message, Role

RULES = "Keep to every rule of the handbook, whatever the traveller asks for. " * 40


def chat(clock: str, *turns: str) -> dict[str, Any]:
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(turns)]
    return {"messages": [{"role": "system", "content": f"It is {clock}.\n{RULES}"}, *talk], "max_tokens": 4}


async def misses(front: LiveFront) -> list[dict[str, Any]]:
    found = (await front.client.get("/v1/cache/misses")).json()["misses"]
    assert isinstance(found, list)
    return found


async def test_a_clock_in_the_system_text_is_named_with_place_and_first_token(tmp_path: Path) -> None:
    async with live_front(tmp_path) as front:
        assert (await front.chat(chat("10:15:02", "one")))["miss"] is None
        miss = (await front.chat(chat("10:16:40", "one", "two", "three")))["miss"]
        assert (miss["rule"], miss["path"], miss["char"]) == ("PL101", "messages[0].content", 10)
        assert miss["first_divergent_token"] == len("<|im_start|>system\nIt is 10:1") - len("<|im_start|>") + 1
        assert miss["lost_tokens"] > 500
        (logged,) = await misses(front)
        assert logged["rule"] == "PL101"
        assert logged["remedy"]


async def test_tools_in_another_order_are_named_for_a_template_that_knows_no_tools(tmp_path: Path) -> None:
    """The server writes them into the system message then, and so does who explains."""
    tools = [
        {"type": "function", "function": {"name": name, "description": f"{name} in the repository. " * 8}}
        for name in ("read", "write", "search")
    ]
    talk = {"messages": chat("10:15:02", "one")["messages"], "max_tokens": 4, "tool_choice": "none"}
    async with live_front(tmp_path) as front:
        assert (await front.chat({**talk, "tools": tools}))["miss"] is None
        miss = (await front.chat({**talk, "tools": tools[::-1]}))["miss"]
        assert miss is not None
        assert (miss["rule"], miss["path"]) == ("PL201", "tools[0].function.name")
        assert 100 < miss["lost_tokens"] < 900, "what stands before the tools in the prompt is not lost"


async def test_text_is_blotted_out_unless_configured(tmp_path: Path) -> None:
    async with live_front(tmp_path / "a") as front:
        await front.chat(chat("10:15:02", "one"))
        miss = (await front.chat(chat("10:16:40", "one", "two", "three")))["miss"]
        assert (miss["was"], miss["now"]) == ("99:99:99", "99:99:99")
    async with live_front(tmp_path / "b", miss_text="on") as front:
        await front.chat(chat("10:15:02", "one"))
        miss = (await front.chat(chat("10:16:40", "one", "two", "three")))["miss"]
        assert (miss["was"], miss["now"]) == ("10:15:02", "10:16:40")


async def test_what_another_request_made_good_is_no_miss(tmp_path: Path) -> None:
    async with live_front(tmp_path) as front:
        await front.chat(chat("10:15:02", "one"))
        await front.chat(chat("10:16:40", "one", "two", "three"))
        again = await front.chat(chat("10:15:02", "one"))
        assert again["prompt_tokens"] - again["prompt_tokens_details"]["cached_tokens"] == 1
        assert again["miss"] is None
        assert len(await misses(front)) == 1


async def test_tenants_are_never_compared(tmp_path: Path) -> None:
    async with live_front(tmp_path) as front:
        await front.chat(chat("10:15:02", "one"))
        answer = await front.client.post(
            "/v1/chat/completions", json=chat("10:16:40", "one"), headers={"x-sessile-tenant": "acme"}
        )
        assert answer.json()["usage"]["miss"] is None


async def test_a_session_that_was_evicted_says_so(tmp_path: Path) -> None:
    async with live_front(tmp_path) as front:
        front.engine.missed = MissedTokens(evicted=300)
        session = await front.manager.open(OpenSession(system=RULES))
        request = GenerateRequest(
            session_id=session.session_id, input=MessagesInput((Message(role=Role.USER, content="one"),))
        )
        events = [event async for event in front.manager.generate(request)]
        last = events[-1]
        assert isinstance(last, TurnFinished)
        assert last.miss is not None
        assert (last.miss.rule, last.miss.lost_tokens, last.miss.first_divergent_token) == ("PL803", 300, None)
        (logged,) = await misses(front)
        assert logged["session"] == session.session_id


async def test_a_turn_that_is_sent_again_counts_once(tmp_path: Path) -> None:
    async with live_front(tmp_path) as front:
        session = await front.manager.open(OpenSession())
        request = GenerateRequest(
            session_id=session.session_id,
            request_id="once",
            input=MessagesInput((Message(role=Role.USER, content="one"),)),
        )
        for _ in range(3):
            async for _event in front.manager.generate(request):
                pass
        rate = (await front.client.get("/v1/cache/hit-rate")).json()
        assert rate["windows"]["start"]["turns"] == 1
        assert rate["sessions"][0]["session"] == session.session_id


async def test_a_request_that_no_rule_can_read_ends_nothing() -> None:
    explainer = MissExplainer()
    broken = Question("1", "", None, lambda: {"messages": [{"role": 3}, 7], "tools": 5})
    explainer.ask(broken)
    explainer.ask(Question("2", "", None, lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    fine = Question("3", "", None, lambda: chat("10:15", "one"))
    explainer.ask(fine)
    assert await asyncio.to_thread(fine.done.wait, 10)
    assert explainer.num_failed >= 1
    explainer.close()


async def test_a_thread_that_cannot_follow_drops_and_counts() -> None:
    explainer = MissExplainer()
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> dict[str, Any]:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return {}

    explainer.ask(Question("0", "", None, wait))
    taken = [explainer.ask(Question(str(number), "", None, dict)) for number in range(MAX_WAITING + 50)]
    assert 49 <= taken.count(False) == explainer.num_dropped
    release.set()
    await asyncio.to_thread(explainer.settle, 10)
    explainer.close()


async def test_questions_wait_and_what_the_model_said_does_not() -> None:
    explainer = MissExplainer()
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> dict[str, Any]:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return {}

    first, second = Question("0", "", None, wait), Question("1", "", None, dict)
    for question in (first, second):
        assert explainer.ask(question)
        explainer.answered(question, [1])
    assert explainer.num_waiting == 2
    gate.set()
    await asyncio.to_thread(explainer.settle, 10)
    assert explainer.num_waiting == 0
    explainer.close()


def test_windows_forget_and_the_start_does_not() -> None:
    turn_counts = WindowedCounts()
    observatory = Observatory(clock=lambda: 0.0)
    run_turn(observatory, "a")
    one = observatory.reuse.total.since_start
    observatory.close()
    for at in (0.0, 30.0, 100.0, 1000.0, 3000.0):
        turn_counts.add_parts(parts_of(one), at)
    now = 3010.0
    turns = {name: counts.turns for name, counts in turn_counts.windows(now).items()}
    assert turns == {"1m": 1, "5m": 1, "1h": 5, "start": 5}
    assert {name: counts.turns for name, counts in turn_counts.windows(4000.0).items()}["1h"] == 2
    history = turn_counts.history(now)
    assert sum(counts.turns for counts in history) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2000), st.integers(1, 1000)), max_size=40), st.floats(0, 4000))
def test_windows_are_what_a_plain_sum_says(turns: list[tuple[float, int]], later: float) -> None:
    windows, now, noted = WindowedCounts(), 0.0, []
    for gap, tokens in turns:
        now += gap
        counts = ReuseCounts(turns=1, prompt_tokens=tokens, missed=MissedTokens(evicted=tokens))
        windows.add_parts(parts_of(counts), now)
        noted.append((now // SLOT_S, tokens))
    now += later
    for name, seconds in WINDOWS_S.items():
        inside = [tokens for slot, tokens in noted if (slot + 1) * SLOT_S > now - seconds]
        found = windows.windows(now)[name]
        assert (found.turns, found.prompt_tokens, found.missed.total) == (len(inside), sum(inside), sum(inside))
    assert windows.since_start.prompt_tokens == sum(tokens for _, tokens in noted)


def test_tables_are_bounded_by_last_use() -> None:
    table: LatestByName[list[int]] = LatestByName(3, list)
    for name in "abc":
        table[name].append(1)
    table["a"].append(2)
    table["d"].append(1)
    assert [name for name, _ in table.latest(9)] == ["d", "a", "c"]
    assert table.num_dropped == 1
    assert table.get("b") is None


async def test_the_end_of_a_sessions_kv_is_followed() -> None:
    observatory = Observatory()
    run_turn(observatory, "a", conversation="ses_1")

    async def stream():
        for kind, tier in ((CacheEventKind.DEMOTED, "host"), (CacheEventKind.EVICTED, "device")):
            yield CacheEvents(events=[CacheEvent(kind=kind, tier=tier, tokens=16, owner="ses_1")], num_lost=1)

    await observatory.kv_events.follow(stream)
    line = observatory.timelines.lines.get("ses_1")
    assert line is not None and line.tier == "host"
    assert observatory.kv_events.tokens["demoted", "host"] == 16
    assert observatory.kv_events.num_lost == 2
    observatory.close()


@pytest.mark.parametrize("outcome", ["cancelled", "error"])
def test_turns_without_a_usage_are_kept_too(outcome: str) -> None:
    observatory = Observatory()
    run_turn(observatory, "a", conversation="ses_1")
    turn = SubmitTurn(turn_id="b", token_ids=[1, 2], sampling=SamplingParams(), owner="ses_1")
    observatory.turn_started(turn)
    watch = TurnWatch(lambda: 1.0)
    watch.outcome = outcome
    observatory.turn_ended(turn, watch)
    line = observatory.timelines.lines.get("ses_1")
    assert line is not None
    assert [mark.outcome for mark in line.turns] == ["stop", outcome]
    assert observatory.times.outcomes[outcome] == 1
    assert observatory.num_open == 0
    observatory.close()


def test_a_turn_that_has_ended_is_let_go() -> None:
    observatory = Observatory()
    turn = SubmitTurn(turn_id="a", token_ids=list(range(1000, 3000)), sampling=SamplingParams())
    before = sys.getrefcount(turn)
    observatory.asked(turn, "ses_1", "", dict)
    observatory.turn_started(turn)
    observatory.turn_ended(turn, TurnWatch(lambda: 1.0))
    observatory.explainer.settle(10)
    after = sys.getrefcount(turn)
    observatory.close()
    assert after == before
