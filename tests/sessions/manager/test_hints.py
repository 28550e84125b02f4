"""Hints, suspend and resume: what the engine's cache is told, what is remembered, and what a repeated request gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from manager_bench import Bench, user

from sessile.server.engine.cache_messages import (
    PersistPath,
    ReleasePath,
    ResumePath,
    RetainOutcome,
    RetainPath,
    SupersedePath,
    SuspendPath,
)
from sessile.server.text.answer_format import TextConfig, ToolFormat
from sessile.sessions.cache.lifetime import Lifetime
from sessile.sessions.cache.retention import Verdict
from sessile.sessions.errors import (
    CapacityError,
    EngineError,
    RequestError,
    SessionBusy,
    SessionNotFound,
    StaleVersion,
)
from sessile.sessions.keeping import (
    ExpectedOutput,
    Final,
    Hint,
    Persistence,
    PersistencePolicy,
    Retain,
    ToolWait,
    WillBranch,
)
from sessile.sessions.manager import (
    AppendRequest,
    CloseRequest,
    ForkRequest,
    HintOutcome,
    HintRequest,
    HintVerdict,
    MessagesInput,
    ResumeRequest,
    RollbackRequest,
    SessionManager,
    SuspendRequest,
    TextInput,
    ToolResultInput,
)
from sessile.sessions.manager.tool_latency import LatencySketch
from sessile.sessions.messages import Message, Role
from sessile.sessions.session import AtTurn
from sessile.sessions.store import StoredLatency


async def hint(bench: Bench, session_id: str, hint: Hint, **fields: Any) -> HintOutcome:
    return await bench.manager.hint(HintRequest(session_id=session_id, hint=hint, **fields))


def asked(bench: Bench, kind: type) -> list[Any]:
    return [request for request in bench.engine.asked if isinstance(request, kind)]


async def test_a_retention_names_the_path_and_outlives_the_server(bench: Bench) -> None:
    session = await bench.open(tenant="a")
    await bench.say(session.session_id, "hi", tenant="a")
    outcome = await hint(bench, session.session_id, Retain(ttl_s=60.0, priority=3), tenant="a")
    assert (outcome.verdict, outcome.expires_in_s) == (HintVerdict.ACCEPTED, 60.0)
    (path,) = asked(bench, RetainPath)
    assert (path.owner, path.cache_salt, path.retention.priority) == (session.session_id, "a", 3)
    assert path.token_ids == (await bench.log(session.session_id)).token_ids()
    assert outcome.pinned_tokens == len(path.token_ids)

    await bench.say(session.session_id, "more", tenant="a")
    await bench.manager.care.settled()
    assert len(asked(bench, RetainPath)) == 1  # the engine carries it on by itself

    bench.restart()  # another manager, and for it another engine: told again at the end of the next turn
    await bench.say(session.session_id, "again", tenant="a")
    await bench.manager.care.settled()
    again = asked(bench, RetainPath)[-1]
    assert again.retention.priority == 3
    assert 0 < again.retention.ttl_s < 60
    bench.clock.now += 100
    bench.restart()
    await bench.say(session.session_id, "late", tenant="a")
    await bench.manager.care.settled()
    assert asked(bench, RetainPath)[-1] is again  # its time is over


async def test_an_empty_session_is_retained_from_its_first_turn_on(bench: Bench) -> None:
    session = await bench.open()
    assert (await hint(bench, session.session_id, Retain(ttl_s=60.0))).pinned_tokens == 0
    assert not bench.engine.asked
    await bench.say(session.session_id, "hi")
    await bench.manager.care.settled()
    assert len(asked(bench, RetainPath)) == 1


async def test_a_hint_changes_neither_log_nor_version_and_may_come_during_a_turn(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    gate = asyncio.Event()
    bench.engine.will_say([64, 65, 257], gate=gate)
    turn = asyncio.create_task(bench.say(session.session_id, "wait"))
    while not bench.manager.running.is_busy(session.session_id):
        await asyncio.sleep(0)
    await hint(bench, session.session_id, Retain(priority=1), expected_version=2)
    with pytest.raises(SessionBusy):
        await bench.manager.suspend(SuspendRequest(session_id=session.session_id))
    gate.set()
    assert (await turn)[1].version == 3
    stored = await bench.store.session(session.session_id)
    assert stored is not None
    assert stored.keeping.retained is not None  # not undone by the commit of the turn


async def test_zero_seconds_take_a_retention_back(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    await hint(bench, session.session_id, Retain(hard=True))
    await hint(bench, session.session_id, Retain(ttl_s=0.0))
    assert asked(bench, ReleasePath) == [ReleasePath(owner=session.session_id)]
    stored = await bench.store.session(session.session_id)
    assert stored is not None
    assert stored.keeping.retained is None


async def test_clipped_and_rejected_say_why(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    bench.engine.will_answer(
        RetainPath, RetainOutcome(verdict=Verdict.CLIPPED, reason="the budget has room for 16", pinned_tokens=16)
    )
    outcome = await hint(bench, session.session_id, Retain(hard=True))
    assert (outcome.verdict, outcome.reason) == (HintVerdict.CLIPPED, "the budget has room for 16")
    bench.engine.will_answer(RetainPath, RetainOutcome(verdict=Verdict.REJECTED, reason="the budget is used up"))
    with pytest.raises(CapacityError, match="used up") as refused:
        await hint(bench, session.session_id, Retain(hard=True))
    assert (refused.value.field, refused.value.retry_after_s) == ("hint.retain.hard", 5.0)


async def test_a_tool_wait_goes_by_its_times_or_by_what_was_observed(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    unknown = await hint(bench, session.session_id, ToolWait(tool="grep"))
    assert unknown.verdict is HintVerdict.REJECTED
    assert "grep" in unknown.reason
    assert not bench.engine.asked
    await hint(bench, session.session_id, ToolWait(tool="grep", p50_s=2.0))
    assert asked(bench, RetainPath)[-1].retention.expected_idle_s == (2.0, 8.0)
    for seconds in (9.0, 9.0, 9.0, 99.0):
        await bench.say(session.session_id, "call it")
        bench.clock.now += seconds
        await bench.say(session.session_id, input=ToolResultInput("call_1", "found", "grep"))
    await hint(bench, session.session_id, ToolWait(tool="grep"))
    p50, p95 = asked(bench, RetainPath)[-1].retention.expected_idle_s
    assert 9.0 <= p50 <= 20.0  # the clock of the bench goes on by itself
    assert 95.0 <= p95 <= 120.0


async def test_a_tool_wait_holds_though_the_pin_beside_it_does_not(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    await hint(bench, session.session_id, Retain(priority=2))
    reason = "the pins of a tenant may keep 9 blocks, of which 9 are used"
    bench.engine.will_answer(RetainPath, RetainOutcome(verdict=Verdict.CLIPPED, reason=reason))
    outcome = await hint(bench, session.session_id, ToolWait(tool="grep", p50_s=2.0))
    assert (outcome.verdict, outcome.reason) == (HintVerdict.ACCEPTED, "")
    told = asked(bench, RetainPath)[-1].retention
    assert (told.priority, told.expected_idle_s) == (2, (2.0, 8.0))


SEARCH = {"type": "function", "function": {"name": "search", "parameters": {}}}


def parse_calls(bench: Bench) -> None:
    """Another manager, which finds tool calls in what the model says."""
    bench.manager.shutdown()
    bench.manager = SessionManager(
        bench.store,
        bench.engine,
        bench.tokenizer,
        bench.template,
        clock=bench.clock,
        steady=bench.clock,
        text_config=TextConfig(tool_parser=ToolFormat.HERMES),
    )


async def search(bench: Bench, session_id: str) -> None:
    """A turn that calls a tool, and the one that answers its result, 30 s later."""
    call = bench.tokens('<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>')
    bench.engine.will_say([*call, 257])
    _, turn = await bench.say(session_id, "go")
    await bench.manager.care.settled()
    bench.clock.now += 30.0
    (called,) = turn.tool_calls
    await bench.say(session_id, input=ToolResultInput(called.id, "found"))
    await bench.manager.care.settled()


async def test_a_tools_observed_latency_keeps_the_session_when_no_hint_does(bench: Bench) -> None:
    """From the end of the turn that called it until its result came; results are known by their calls' ids."""
    parse_calls(bench)
    session = await bench.open(tools=(SEARCH,))
    for _ in range(4):
        await search(bench, session.session_id)
    expected = [path.retention.expected_idle_s for path in asked(bench, RetainPath)]
    assert len(expected) == 1  # after three observations; turns that call nothing are kept like any other
    p50, p95 = expected[0]
    assert 30.0 <= p50 <= p95 <= 50.0
    last = asked(bench, RetainPath)[-1]
    assert (last.retention.priority, last.retention.hard, last.retention.ttl_s) == (0, False, None)


async def test_a_pin_without_room_is_told_with_each_wait_and_with_nothing_else(bench: Bench) -> None:
    """The engine goes on to try a pin that it clipped: turns that call nothing have nothing to tell."""
    parse_calls(bench)
    session = await bench.open(tools=(SEARCH,))
    await hint(bench, session.session_id, Retain(priority=2))
    bench.engine.will_answer(RetainPath, RetainOutcome(verdict=Verdict.REJECTED, reason="no room"))
    for _ in range(3):  # at the end of the first turn, which tells of the pin alone, and is refused; of the second
        await search(bench, session.session_id)
    assert [path.retention.expected_idle_s for path in asked(bench, RetainPath)] == [None, None]
    for _ in range(2):
        bench.engine.will_answer(RetainPath, RetainOutcome(verdict=Verdict.CLIPPED, reason="no room"))
        await search(bench, session.session_id)
    told = [path.retention for path in asked(bench, RetainPath)][2:]
    assert [(retention.priority, retention.expected_idle_s is not None) for retention in told] == [(2, True)] * 2


async def test_latencies_are_a_tenants_own(bench: Bench) -> None:
    mine, other = await bench.open(tenant="a"), await bench.open(tenant="b")
    results = MessagesInput((Message(role=Role.TOOL, content="x", tool_call_id="c", name="make"), user("go on")))
    for _ in range(3):
        await bench.say(mine.session_id, "build", tenant="a")
        await bench.say(mine.session_id, input=results, tenant="a")
    assert bench.manager.care.latencies.expected_idle_s("a", "make") is not None
    assert bench.manager.care.latencies.expected_idle_s("b", "make") is None
    assert (await hint(bench, other.session_id, ToolWait(tool="make"), tenant="b")).verdict is HintVerdict.REJECTED


async def test_latencies_outlive_the_server(bench: Bench) -> None:
    session = await bench.open(tenant="a")
    results = MessagesInput((Message(role=Role.TOOL, content="x", tool_call_id="c", name="make"), user("go on")))
    for _ in range(3):
        await bench.say(session.session_id, "build", tenant="a")
        await bench.say(session.session_id, input=results, tenant="a")
    await bench.manager.care.settled()
    known = bench.manager.care.latencies.expected_idle_s("a", "make")
    bench.restart()
    assert bench.manager.care.latencies.expected_idle_s("a", "make") is None
    await bench.manager.care.recall()
    assert bench.manager.care.latencies.expected_idle_s("a", "make") == known is not None
    await bench.say(session.session_id, "build", tenant="a")
    await bench.say(session.session_id, input=results, tenant="a")
    await bench.manager.care.aclose()
    (stored,) = await bench.store.tool_latencies()
    assert LatencySketch.from_bytes(stored.sketch).observations == 4, "what was observed last is kept by the end too"


async def test_a_latency_that_cannot_be_read_is_learnt_again(bench: Bench) -> None:
    stored = [StoredLatency(tenant="a", tool=tool, sketch=b"\xc1", used_at=1.0) for tool in ("grep", "make")]
    await bench.store.keep_tool_latencies(stored)
    await bench.manager.care.recall()
    assert bench.manager.care.latencies.expected_idle_s("a", "grep") is None


async def test_expected_output_reaches_the_next_turn_only(bench: Bench) -> None:
    session = await bench.open()
    await hint(bench, session.session_id, ExpectedOutput(text="abc"))
    bench.restart()  # it is durable
    await bench.manager.append(AppendRequest(session_id=session.session_id, input=TextInput("x")))
    await bench.say(session.session_id, "hi")
    await bench.say(session.session_id, "and?")
    wished = [turn.expected_token_ids for turn in bench.engine.submitted]
    assert wished == [(), tuple(bench.tokens("abc")), ()]


async def test_a_fork_point_is_kept_until_its_forks_are_made(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    outcome = await hint(bench, session.session_id, WillBranch(branches=2))
    assert outcome.expires_in_s == 600.0
    (path,) = asked(bench, RetainPath)
    assert path.owner == f"{session.session_id}/branch"
    await bench.say(session.session_id, "the source goes on")
    for index in range(3):
        await bench.manager.fork(ForkRequest(session_id=session.session_id, at=AtTurn(1)))
        await bench.manager.care.settled()
        assert len(asked(bench, ReleasePath)) == (0, 1, 1)[index]
    assert asked(bench, ReleasePath) == [ReleasePath(owner=path.owner)]


async def test_after_the_final_turn_its_kv_goes_first(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    await hint(bench, session.session_id, Retain())
    await hint(bench, session.session_id, Final())
    assert not asked(bench, SupersedePath)
    _, last = await bench.say(session.session_id, "bye")
    await bench.manager.care.settled()
    (gone,) = asked(bench, SupersedePath)
    assert (len(gone.token_ids), gone.from_token) == (last.num_tokens, 0)
    assert ReleasePath(owner=session.session_id) in bench.engine.asked


async def test_trt_llm_13080_rollback_and_close_let_go_of_what_nobody_shares(bench: Bench) -> None:
    session = await bench.open()
    ends = [(await bench.say(session.session_id, f"turn {index}"))[1].num_tokens for index in range(3)]
    whole = (await bench.log(session.session_id)).token_ids()
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id, at=AtTurn(2)))

    await bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=AtTurn(1)))
    await bench.manager.care.settled()
    (gone,) = asked(bench, SupersedePath)
    assert (gone.token_ids, gone.from_token) == (whole, ends[1])  # the fork still has the second turn

    await bench.manager.close(CloseRequest(session_id=session.session_id))
    await bench.manager.care.settled()
    assert len(asked(bench, SupersedePath)) == 1  # all that is left of it, the fork has too
    assert asked(bench, ReleasePath) == [ReleasePath(owner=session.session_id)]

    await bench.manager.close(CloseRequest(session_id=fork.session_id))
    await bench.manager.care.settled()
    last = asked(bench, SupersedePath)[-1]
    assert (last.token_ids, last.from_token) == (whole[: ends[1]], 0)


async def test_a_cache_that_does_not_listen_disturbs_nobody(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    bench.engine.will_answer(SupersedePath, EngineError("the engine died"))
    await bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=AtTurn(0)))
    await bench.manager.care.settled()
    assert (await bench.say(session.session_id, "hi"))[1].turn == 1


@pytest.mark.parametrize(
    ("policy", "persist"),
    [(Persistence.ALWAYS, True), (Persistence.NONE, False), (Persistence.ON_SUSPEND, False)],
)
async def test_the_policy_decides_what_a_turn_persists(bench: Bench, policy: Persistence, persist: bool) -> None:
    session = await bench.open(persistence=PersistencePolicy(policy))
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id))
    assert session.persistence.when is fork.persistence.when is policy
    await bench.say(session.session_id, "hi")
    await bench.say(fork.session_id, "hi")
    assert [turn.persist for turn in bench.engine.submitted] == [persist, persist]
    lifetime = Lifetime.PROCESS if policy is Persistence.NONE else Lifetime.DURABLE
    await bench.manager.resume(ResumeRequest(session_id=session.session_id))
    asked_for = [*(turn.lifetime for turn in bench.engine.submitted), asked(bench, ResumePath)[-1].lifetime]
    assert asked_for == [lifetime] * 3, "what must not outlive the process never does"


async def test_idle_sessions_are_persisted_once(bench: Bench) -> None:
    session = await bench.open(persistence=PersistencePolicy(Persistence.ON_IDLE, 60.0))
    await bench.say(session.session_id, "hi")
    care = bench.manager.care
    await care.idle.attend()
    assert not asked(bench, PersistPath)
    bench.clock.now += 50
    await bench.say(session.session_id, "still here")  # starts anew
    bench.clock.now += 30
    await care.idle.attend()
    assert not asked(bench, PersistPath)
    bench.clock.now += 40
    await care.idle.attend()
    await care.idle.attend()
    (path,) = asked(bench, PersistPath)
    assert path.token_ids == (await bench.log(session.session_id)).token_ids()
    await bench.say(session.session_id, "bye")
    await bench.manager.close(CloseRequest(session_id=session.session_id))
    bench.clock.now += 100
    await care.idle.attend()
    assert len(asked(bench, PersistPath)) == 1
    assert care.idle.waiting == 0


async def test_a_turn_that_fails_does_not_keep_a_session_from_being_idle(bench: Bench) -> None:
    session = await bench.open(persistence=PersistencePolicy(Persistence.ON_IDLE, 60.0))
    await bench.say(session.session_id, "hi")
    bench.engine.will_say([64, 65], fail_after=1)
    with pytest.raises(EngineError):
        await bench.say(session.session_id, "again")
    bench.clock.now += 100
    await bench.manager.care.idle.attend()
    assert len(asked(bench, PersistPath)) == 1


async def test_suspend_and_resume(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    suspended = await bench.manager.suspend(SuspendRequest(session_id=session.session_id, expected_version=2))
    assert suspended.session.suspended
    assert suspended.session.version == 2
    assert suspended.tokens_by_tier.disk == suspended.session.num_tokens
    assert (await bench.manager.get(session.session_id)).suspended
    resumed = await bench.manager.resume(ResumeRequest(session_id=session.session_id))
    assert not resumed.session.suspended
    assert resumed.tokens_by_tier.disk == resumed.session.num_tokens
    assert not (await bench.manager.get(session.session_id)).suspended
    await bench.manager.suspend(SuspendRequest(session_id=session.session_id))
    await bench.say(session.session_id, "a turn resumes by itself")
    assert not (await bench.manager.get(session.session_id)).suspended


async def test_what_is_never_persisted_is_suspended_to_memory(bench: Bench) -> None:
    for policy, persist in ((Persistence.NONE, False), (Persistence.ON_SUSPEND, True)):
        session = await bench.open(persistence=PersistencePolicy(policy))
        await bench.say(session.session_id, "hi")
        await bench.manager.suspend(SuspendRequest(session_id=session.session_id))
        assert asked(bench, SuspendPath)[-1].persist is persist


async def test_an_empty_session_has_nothing_to_suspend(bench: Bench) -> None:
    session = await bench.open()
    assert (await bench.manager.suspend(SuspendRequest(session_id=session.session_id))).device_blocks_freed == 0
    assert (await bench.manager.resume(ResumeRequest(session_id=session.session_id))).tokens_to_compute == 0
    assert not bench.engine.asked


async def test_the_same_request_gets_the_same_answer(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    requests = {
        "h": HintRequest(session_id=session.session_id, request_id="h", hint=Retain(ttl_s=5.0)),
        "s": SuspendRequest(session_id=session.session_id, request_id="s"),
        "r": ResumeRequest(session_id=session.session_id, request_id="r"),
    }

    async def send(request: Any) -> Any:
        kinds = {HintRequest: bench.manager.hint, SuspendRequest: bench.manager.suspend}
        return await kinds.get(type(request), bench.manager.resume)(request)

    first = {name: await send(request) for name, request in requests.items()}
    told = len(bench.engine.asked)
    bench.restart()
    assert {name: await send(request) for name, request in requests.items()} == first
    assert len(bench.engine.asked) == told
    with pytest.raises(RequestError, match="another request"):
        await send(HintRequest(session_id=session.session_id, request_id="h", hint=Retain(ttl_s=6.0)))
    with pytest.raises(RequestError, match="another request"):
        await send(SuspendRequest(session_id=session.session_id, request_id="r"))


@pytest.mark.parametrize("request_type", [HintRequest, SuspendRequest, ResumeRequest])
async def test_versions_and_tenants_are_checked(bench: Bench, request_type: type) -> None:
    session = await bench.open(tenant="a")
    fields: dict[str, Any] = {"session_id": session.session_id}
    if request_type is HintRequest:
        fields["hint"] = Final()
    call = {HintRequest: bench.manager.hint, SuspendRequest: bench.manager.suspend}.get(
        request_type, bench.manager.resume
    )
    with pytest.raises(StaleVersion):
        await call(request_type(**fields, tenant="a", expected_version=7))
    with pytest.raises(SessionNotFound):
        await call(request_type(**fields, tenant="b"))
    await bench.manager.close(CloseRequest(session_id=session.session_id, tenant="a"))
    with pytest.raises(SessionNotFound):
        await call(request_type(**fields, tenant="a"))
    await bench.manager.care.settled()
    assert not asked(bench, SuspendPath)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (ToolWait(tool=""), "hint.tool_wait.tool"),
        (ToolWait(tool="x" * 201), "hint.tool_wait.tool"),
        (ToolWait(tool="t", p50_s=-1.0), "hint.tool_wait.p50_seconds"),
        (ToolWait(tool="t", p50_s=float("nan")), "hint.tool_wait.p50_seconds"),
        (ToolWait(tool="t", p95_s=1.0), "hint.tool_wait.p50_seconds"),
        (ToolWait(tool="t", p50_s=2.0, p95_s=1.0), "hint.tool_wait.p95_seconds"),
        (Retain(ttl_s=-1.0), "hint.retain.ttl_seconds"),
        (Retain(ttl_s=float("inf")), "hint.retain.ttl_seconds"),
        (Retain(priority=101), "hint.retain.priority"),
        (WillBranch(branches=0), "hint.will_branch.branches"),
        (WillBranch(branches=1001), "hint.will_branch.branches"),
        (ExpectedOutput(text=""), "hint.expected_output.text"),
        (ExpectedOutput(text="x" * 1_000_001), "hint.expected_output.text"),
        (ExpectedOutput(text="\ud800"), "hint.expected_output.text"),
    ],
)
async def test_bad_hints_name_their_field(bench: Bench, wrong: Hint, field: str) -> None:
    session = await bench.open()
    with pytest.raises(RequestError) as refused:
        await hint(bench, session.session_id, wrong)
    assert refused.value.field == field
