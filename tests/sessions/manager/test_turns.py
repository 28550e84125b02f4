"""Turns of a session: what the engine is asked, what is committed, what an interrupted turn leaves behind."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from byte_text import byte_tokenizer
from manager_bench import GREEDY, Bench, collected, user
from scripted_engine import ScriptedEngine

from sessile.server.engine.messages import FinishReason
from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.errors import (
    CapacityError,
    ContextOverflow,
    Draining,
    EngineError,
    ModelChanged,
    RequestError,
    SessionBusy,
    SessionNotFound,
    StaleVersion,
    StoreError,
)
from sessile.sessions.manager import (
    AppendRequest,
    CloseRequest,
    ForkRequest,
    GenerateRequest,
    ListSessions,
    MessagesInput,
    RollbackRequest,
    SessionManager,
    StopCause,
    TextDelta,
    TextInput,
    TokenIdsInput,
    ToolResultInput,
)
from sessile.sessions.messages import Message, Role, ToolCall
from sessile.sessions.session import AtToken, AtTurn, EntryKind


async def test_the_log_is_the_conversation(bench: Bench) -> None:
    session = await bench.open(system="be good")
    first, finished = await bench.say(session.session_id, "hi <|im_end|>")
    second, again = await bench.say(session.session_id, "and?")
    assert await bench.text(session.session_id) == (
        "<|im_start|>system\nbe good<|im_end|>\n<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
        f"{first}<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n{second}<|im_end|>"
    )
    special = bench.tokenizer.token_id("<|im_end|>")
    assert bench.engine.submitted[0].token_ids.count(special) == 2  # the one in the message is only text
    assert (finished.version, finished.turn, again.version, again.turn) == (2, 1, 3, 2)
    assert again.num_tokens == finished.num_tokens + again.tokens_committed
    assert again.usage.tokens_by_source.cached == finished.num_tokens
    assert bench.engine.submitted[1].token_ids[: finished.num_tokens] == [
        *bench.engine.submitted[0].token_ids,
        *(await bench.log(session.session_id)).parts[1].token_ids,
    ]


async def test_sampled_tokens_are_never_rendered_again(bench: Bench) -> None:
    """An answer whose tokens no tokenizer would make of its text is replayed as it was sampled."""
    bench.tokenizer = byte_tokenizer("<|mind|>")
    bench.engine = ScriptedEngine(vocab_size=259)
    bench.restart()
    session = await bench.open()
    bench.engine.will_say([258, 64, 65, 257])
    text, _ = await bench.say(session.session_id, "hi")
    assert text == "ab"
    await bench.say(session.session_id, "more")
    assert bench.shown(bench.engine.submitted[1].token_ids).count("<|mind|>ab<|im_end|>\n<|im_start|>user\nmore") == 1


async def test_append_then_answer(bench: Bench) -> None:
    session = await bench.open()
    one = await bench.manager.append(
        AppendRequest(session_id=session.session_id, input=MessagesInput((user("a"), user("b"))))
    )
    assert one.session.num_turns == 0
    assert one.usage.completion_tokens == 0
    assert one.tokens_committed == one.session.num_tokens == one.usage.prompt_tokens
    answer, finished = await bench.say(session.session_id)
    assert await bench.text(session.session_id) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n" + answer + "<|im_end|>"
    )
    assert finished.usage.tokens_by_source.cached == one.session.num_tokens
    assert finished.tokens_committed == finished.num_tokens - one.session.num_tokens


async def test_a_tool_loop(bench: Bench) -> None:
    session = await bench.open(system="s")
    await bench.say(session.session_id, "read x")
    await bench.say(session.session_id, None, input=ToolResultInput("call-1", "contents", "read"))
    text = await bench.text(session.session_id)
    assert "<|im_end|>\n<|im_start|>tool\ncontents<|im_end|>\n<|im_start|>assistant\n" in text
    call = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="c", name="f", arguments='{"a": 1}'),))
    await bench.say(session.session_id, None, input=MessagesInput((call, user("x"))))
    assert (await bench.log(session.session_id)).parts[4].entry.messages[0] == call


async def test_an_answer_cut_by_length_goes_on_or_is_closed(bench: Bench) -> None:
    session = await bench.open()
    bench.engine.will_say([64, 65, 66, 257])
    text, finished = await bench.say(session.session_id, "x", sampling=SamplingParams(temperature=0, max_tokens=2))
    assert (text, finished.finish_reason, finished.stop_cause) == ("ab", FinishReason.LENGTH, StopCause.LENGTH)
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id))
    bench.engine.will_say([66, 257])
    await bench.say(session.session_id)
    assert (await bench.text(session.session_id)).endswith("assistant\nabc<|im_end|>")
    bench.engine.will_say([67, 257])
    await bench.say(fork.session_id, "y")
    assert (await bench.text(fork.session_id)).endswith(
        "assistant\nab<|im_end|>\n<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\nd<|im_end|>"
    )


async def test_an_answer_cut_by_a_rollback_is_closed(bench: Bench) -> None:
    session = await bench.open()
    bench.engine.will_say([64, 65, 66, 257])
    _, finished = await bench.say(session.session_id, "x")
    await bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=AtToken(finished.num_tokens - 2)))
    await bench.say(session.session_id, "y")
    assert "assistant\nab<|im_end|>\n<|im_start|>user\ny<|im_end|>" in await bench.text(session.session_id)
    view = await bench.manager.get(session.session_id)
    assert (view.num_turns, view.version) == (1, 4)


async def test_a_message_cut_by_a_fork_is_closed(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "abcdef")
    cut = len(bench.tokens("<|im_start|>user\nabc"))
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id, at=AtToken(cut)))
    await bench.say(fork.session_id, "y")
    assert (await bench.text(fork.session_id)).startswith(
        "<|im_start|>user\nabc<|im_end|>\n<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_fork_before_the_answer_is_answered_again(bench: Bench) -> None:
    session = await bench.open()
    _, finished = await bench.say(session.session_id, "x")
    prompt = finished.usage.prompt_tokens
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id, at=AtToken(prompt)))
    await bench.say(fork.session_id)
    assert bench.engine.submitted[1].token_ids == bench.engine.submitted[0].token_ids


async def test_text_and_tokens_as_they_stand(bench: Bench) -> None:
    session = await bench.open()
    text, _ = await bench.say(session.session_id, None, input=TextInput("once upon <|im_start|>"))
    await bench.say(session.session_id, None, input=TokenIdsInput((1, 2, 3)))
    assert bench.engine.submitted[0].token_ids == bench.tokens("once upon <|im_start|>")
    assert bench.engine.submitted[1].token_ids == [
        *bench.engine.submitted[0].token_ids,
        *bench.tokens(text),
        257,
        1,
        2,
        3,
    ]
    log = await bench.log(session.session_id)
    assert [part.entry.kind for part in log.parts] == [EntryKind.INPUT, EntryKind.OUTPUT] * 2
    assert all(not part.entry.messages for part in log.parts)


async def test_text_behind_a_system_prompt(bench: Bench) -> None:
    session = await bench.open(system="s")
    await bench.say(session.session_id, None, input=TextInput("<|im_start|>user\nraw"))
    assert bench.shown(bench.engine.submitted[0].token_ids) == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nraw"


@pytest.mark.parametrize("tokens_a_step", [1, 2, 3, 10])
async def test_stop_strings_over_token_borders(bench: Bench, tokens_a_step: int) -> None:
    session = await bench.open()
    bench.engine.will_say([*bench.tokens("one ENtwo END three"), 257], tokens_a_step=tokens_a_step)
    text, finished = await bench.say(session.session_id, "x", stop=("END", "never"))
    assert (text, finished.stop_cause) == ("one ENtwo ", StopCause.STOP_STRING)
    assert finished.finish_reason is FinishReason.STOP
    assert finished.usage.completion_tokens == len("one ENtwo END")
    assert finished.usage.tokens_by_source.total == finished.usage.prompt_tokens
    assert (await bench.text(session.session_id)).endswith("assistant\none ENtwo END")
    await bench.say(session.session_id, "y")
    assert "one ENtwo END<|im_end|>\n<|im_start|>user\ny" in await bench.text(session.session_id)


async def test_a_stop_string_in_the_last_step_needs_no_abort(bench: Bench) -> None:
    session = await bench.open()
    bench.engine.will_say([*bench.tokens("aSTOP"), 257], tokens_a_step=6)
    text, finished = await bench.say(session.session_id, "x", stop=("STOP",))
    assert (text, finished.stop_cause) == ("a", StopCause.STOP_STRING)
    assert (await bench.log(session.session_id)).token_ids()[-1] != 257


async def test_text_held_back_is_told_at_the_end(bench: Bench) -> None:
    session = await bench.open()
    euro = bench.tokens("€")
    bench.engine.will_say([*euro, *bench.tokens("EN"), *euro[:2]])
    deltas = [
        event
        async for event in bench.manager.generate(
            GenerateRequest(
                session_id=session.session_id,
                input=TextInput("x"),
                sampling=SamplingParams(logprobs=0),
                stop=("END",),
            )
        )
        if isinstance(event, TextDelta)
    ]
    assert [delta.text for delta in deltas] == ["", "", "€", "", "", "", "EN\ufffd"]
    assert [delta.token_ids for delta in deltas] == [(token,) for token in [*euro, *bench.tokens("EN"), *euro[:2]]]
    assert all(len(delta.logprobs) == 1 for delta in deltas)


async def test_stop_tokens(bench: Bench) -> None:
    session = await bench.open()
    bench.engine.eos_token_id = 70
    bench.engine.will_say([64, 70])
    _, finished = await bench.say(session.session_id, "x", sampling=SamplingParams(stop_token_ids=(70,)))
    assert finished.stop_cause is StopCause.STOP_TOKEN


# -- one at a time, versions, owners ----------------------------------------------------------------------------------


async def test_one_change_at_a_time(bench: Bench) -> None:
    session = await bench.open()
    gate = asyncio.Event()
    bench.engine.will_say([64, 65, 257], gate=gate)
    running = bench.manager.generate(GenerateRequest(session_id=session.session_id, input=TextInput("x")))
    await anext(running)
    assert (await bench.manager.get(session.session_id)).busy
    assert (await bench.manager.list(ListSessions())).sessions[0].busy
    for change in (
        bench.say(session.session_id, "y"),
        bench.manager.append(AppendRequest(session_id=session.session_id, input=TextInput("y"))),
        bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=AtTurn(0))),
        bench.manager.close(CloseRequest(session_id=session.session_id)),
    ):
        with pytest.raises(SessionBusy):
            await change
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id))
    assert fork.num_tokens == 0
    gate.set()
    _, finished = await collected(running)
    assert finished.version == 2
    assert not (await bench.manager.get(session.session_id)).busy


async def test_the_session_is_free_when_the_end_is_told(bench: Bench) -> None:
    session = await bench.open()
    running = bench.manager.generate(GenerateRequest(session_id=session.session_id, input=TextInput("x")))
    async for event in running:
        if not isinstance(event, TextDelta):
            await bench.say(session.session_id, "next")
            break
    await running.aclose()
    assert (await bench.manager.get(session.session_id)).num_turns == 2


async def test_many_at_once_and_one_wins(bench: Bench) -> None:
    session = await bench.open()
    results = await asyncio.gather(
        *(bench.say(session.session_id, f"{index}", expected_version=1) for index in range(20)), return_exceptions=True
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1
    assert all(isinstance(result, SessionBusy | StaleVersion) for result in results if result not in won)
    assert (await bench.manager.get(session.session_id)).num_turns == 1


async def test_stale_versions(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "x", expected_version=1)
    ask = {"session_id": session.session_id, "expected_version": 1}
    for change in (
        bench.say(session.session_id, "y", expected_version=1),
        bench.manager.append(AppendRequest(**ask, input=TextInput("y"))),
        bench.manager.rollback(RollbackRequest(**ask, to=AtTurn(0))),
        bench.manager.fork(ForkRequest(**ask)),
        bench.manager.close(CloseRequest(**ask)),
    ):
        with pytest.raises(StaleVersion) as stale:
            await change
        assert (stale.value.expected, stale.value.actual) == (1, 2)
    assert (await bench.manager.get(session.session_id)).version == 2


async def test_another_tenants_session_is_not_found(bench: Bench) -> None:
    session = await bench.open(tenant="a")
    await bench.say(session.session_id, "x", tenant="a", request_id="r")
    ask = {"session_id": session.session_id, "tenant": "b", "request_id": "r"}
    for change in (
        bench.say(session.session_id, "x", tenant="b", request_id="r"),
        bench.manager.append(AppendRequest(**ask, input=TextInput("y"))),
        bench.manager.rollback(RollbackRequest(**ask, to=AtTurn(0))),
        bench.manager.fork(ForkRequest(**ask)),
        bench.manager.close(CloseRequest(**ask)),
        bench.manager.get(session.session_id, "b"),
        bench.manager.get("ses_none", "a"),
    ):
        with pytest.raises(SessionNotFound):
            await change
    assert (await bench.manager.list(ListSessions(tenant="b"))).sessions == ()
    assert bench.engine.submitted[0].cache_salt == "a"


async def test_a_closed_session_is_gone(bench: Bench) -> None:
    session = await bench.open()
    closed = await bench.manager.close(CloseRequest(session_id=session.session_id))
    assert closed.version == 2
    for change in (
        bench.say(session.session_id, "x"),
        bench.manager.get(session.session_id),
        bench.manager.fork(ForkRequest(session_id=session.session_id)),
        bench.manager.close(CloseRequest(session_id=session.session_id)),
    ):
        with pytest.raises(SessionNotFound):
            await change
    assert (await bench.manager.list(ListSessions())).sessions == ()


async def test_pages(bench: Bench) -> None:
    opened = [(await bench.open(system="long")).session_id for _ in range(5)]
    seen, token, sizes = [], "", []
    while True:
        page = await bench.manager.list(ListSessions(page_size=2, page_token=token))
        seen += [view.session_id for view in page.sessions]
        sizes.append(len(page.sessions))
        assert all(view.system is None for view in page.sessions)
        token = page.next_page_token
        if not token:
            break
    assert (seen, sizes) == (opened, [2, 2, 1])


# -- what goes wrong --------------------------------------------------------------------------------------------------


async def untouched(bench: Bench, session_id: str, version: int) -> None:
    view = await bench.manager.get(session_id)
    assert (view.version, view.busy) == (version, False)
    await bench.say(session_id, "still works")
    assert (await bench.manager.get(session_id)).version == version + 1


@pytest.mark.parametrize("after", range(5))
async def test_a_turn_cancelled_at_any_point(bench: Bench, after: int) -> None:
    session = await bench.open()
    bench.engine.will_say([64, 65, 66, 67, 68, 69, 257])
    running = bench.manager.generate(GenerateRequest(session_id=session.session_id, input=TextInput("x")))
    for _ in range(after):
        await anext(running)
    await running.aclose()
    assert len(bench.engine.aborted) == (1 if after else 0)
    assert not bench.engine.running
    bench.engine.scripts.clear()
    await untouched(bench, session.session_id, 1)


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_a_task_cancelled_at_any_step(bench: Bench, steps: int) -> None:
    """Either all of the turn is there, and its answer with it, or nothing."""
    session = await bench.open()
    bench.engine.will_say([64, 65, 66, 257])
    task = asyncio.ensure_future(bench.say(session.session_id, "x", request_id="r"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    bench.engine.scripts.clear()
    before = (await bench.manager.get(session.session_id)).version
    turns = len(bench.engine.submitted)
    bench.engine.will_say([64, 65, 66, 257])
    text, finished = await bench.say(session.session_id, "x", request_id="r")
    assert (text, finished.version) == ("abc", 2)
    assert finished.replayed == (before == 2)
    assert len(bench.engine.submitted) == turns + (before == 1)


async def test_a_cancel_while_the_commit_runs_waits_for_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await bench.open()
    apply, started = bench.store.apply, asyncio.Event()

    async def slow(change: object) -> object:
        started.set()
        return await apply(change)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.store, "apply", slow)
    task = asyncio.ensure_future(bench.say(session.session_id, "x", request_id="r"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    view = await bench.manager.get(session.session_id)
    assert (view.version, view.busy) == (2, False)
    _, finished = await bench.say(session.session_id, "x", request_id="r")
    assert finished.replayed


async def test_an_engine_that_dies_leaves_the_session(bench: Bench) -> None:
    session = await bench.open()
    bench.engine.will_say([64, 65, 257], fail_after=1)
    with pytest.raises(EngineError) as died:
        await bench.say(session.session_id, "x")
    assert died.value.retry_after_s == 0.5
    await untouched(bench, session.session_id, 1)


async def test_an_engine_with_a_full_queue(bench: Bench) -> None:
    session = await bench.open()
    bench.engine.will_say([64], fail_after=0, error=CapacityError("the queue is full", retry_after_s=2.0))
    with pytest.raises(CapacityError):
        await bench.say(session.session_id, "x")
    bench.engine.will_say([64], fail_after=0)
    with pytest.raises(EngineError):
        await bench.manager.append(AppendRequest(session_id=session.session_id, input=TextInput("x")))
    await untouched(bench, session.session_id, 1)


async def test_an_engine_that_is_not_there(bench: Bench) -> None:
    session = await bench.open()
    ready, bench.engine.ready = bench.engine.ready, None
    for work in (bench.open(), bench.say(session.session_id, "x"), bench.complete([user("x")])):
        with pytest.raises(EngineError):
            await work
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id))  # needs no engine
    await bench.manager.close(CloseRequest(session_id=fork.session_id))
    bench.engine.ready = ready
    await untouched(bench, session.session_id, 1)


async def test_a_disk_that_fails_at_the_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await bench.open()

    async def fails(change: object) -> object:
        raise StoreError("the disk of the session store is full", remedy="free space")

    with monkeypatch.context() as broken:
        broken.setattr(bench.store, "apply", fails)
        with pytest.raises(StoreError):
            await bench.say(session.session_id, "x")
    await untouched(bench, session.session_id, 1)


async def test_another_model_or_tokenizer(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "x")
    old, bench.engine = bench.engine, ScriptedEngine(fingerprint="weights-2")
    bench.restart()
    with pytest.raises(ModelChanged) as changed:
        await bench.say(session.session_id, "y")
    assert (changed.value.session_fingerprint, changed.value.server_fingerprint) == ("weights-1", "weights-2")
    bench.engine, bench.tokenizer = old, byte_tokenizer("<other>")
    bench.restart()
    with pytest.raises(ModelChanged, match="tokenizer"):
        await bench.manager.append(AppendRequest(session_id=session.session_id, input=TextInput("y")))
    bench.tokenizer = byte_tokenizer()
    bench.restart()
    await untouched(bench, session.session_id, 2)


async def test_draining(bench: Bench) -> None:
    session = await bench.open()
    gate = asyncio.Event()
    bench.engine.will_say([64, 65, 257], gate=gate)
    running = bench.manager.generate(GenerateRequest(session_id=session.session_id, input=TextInput("x")))
    await anext(running)
    draining = asyncio.ensure_future(bench.manager.drain())
    await asyncio.sleep(0)
    for work in (
        bench.open(),
        bench.say(session.session_id, "y"),
        bench.complete([user("x")]),
        bench.manager.fork(ForkRequest(session_id=session.session_id)),
    ):
        with pytest.raises(Draining) as refused:
            await work
        assert refused.value.retry_after_s
    assert not draining.done()
    assert bench.manager.running.in_hand == 1
    gate.set()
    assert (await collected(running))[1].turn == 1
    await draining
    assert (await bench.manager.get(session.session_id)).num_turns == 1


async def test_a_rollback_past_the_start(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "x")
    for point, field in (
        (AtTurn(-1), "to.turn"),
        (AtTurn(2), "to.turn"),
        (AtToken(-1), "to.token"),
        (AtToken(999), "to.token"),
    ):
        with pytest.raises(RequestError) as past:
            await bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=point))
        assert past.value.field == field
    view = await bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=AtTurn(0)))
    assert (view.num_tokens, view.num_turns, view.version) == (0, 0, 3)
    await bench.say(session.session_id, "x")
    assert bench.engine.submitted[0].token_ids == bench.engine.submitted[1].token_ids


async def test_the_context_has_an_end(bench: Bench) -> None:
    session = await bench.open()
    limit = bench.engine.info.context_length
    full = TokenIdsInput((1,) * (limit - 1))
    _, finished = await bench.say(session.session_id, None, input=full)
    assert (finished.num_tokens, finished.finish_reason) == (limit, FinishReason.LENGTH)
    with pytest.raises(ContextOverflow) as overflow:
        await bench.say(session.session_id, "x")
    assert overflow.value.limit == limit
    other = await bench.open()
    for turn_input, max_tokens, field in (
        (TokenIdsInput((1,) * limit), None, "input"),
        (TokenIdsInput((1,) * (limit - 5)), 6, "sampling.max_tokens"),
        (TextInput("x" * 20_000_000), None, "input"),
        (MessagesInput((user("x" * 5_000_000),)), None, "input.messages"),
    ):
        with pytest.raises(ContextOverflow) as overflow:
            await bench.say(
                other.session_id, None, input=turn_input, sampling=SamplingParams(temperature=0, max_tokens=max_tokens)
            )
        assert overflow.value.field == field
    with pytest.raises(ContextOverflow, match="the text has more than"):  # by its bytes, before it is tokenised
        await bench.say(other.session_id, None, input=TextInput("🐘" * (limit // 2)))
    with pytest.raises(ContextOverflow):
        await bench.manager.append(AppendRequest(session_id=other.session_id, input=TokenIdsInput((1,) * limit)))
    await untouched(bench, other.session_id, 1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": None}, "input"),
        ({"input": MessagesInput(())}, "input.messages"),
        ({"input": TextInput("")}, "input"),
        ({"input": TextInput("\ud800")}, "input"),
        ({"input": TokenIdsInput(())}, "input"),
        ({"input": TokenIdsInput((1, 258))}, "input[1]"),
        ({"input": TokenIdsInput((-1,))}, "input[0]"),
        ({"input": TokenIdsInput((2**40,))}, "input[0]"),
        ({"input": MessagesInput((user("a"), user("\udfff")))}, "input.messages[1].content"),
        ({"input": MessagesInput((user("a"),) * 10_001)}, "input.messages"),
        ({"input": ToolResultInput("", "x")}, "input.tool_call_id"),
        ({"input": ToolResultInput("c", "\ud800")}, "input.content"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "sampling.temperature"),
        ({"sampling": SamplingParams(temperature=float("inf"))}, "sampling.temperature"),
        ({"sampling": SamplingParams(max_tokens=0)}, "sampling.max_tokens"),
        ({"sampling": SamplingParams(max_tokens=-1)}, "sampling.max_tokens"),
        ({"sampling": SamplingParams(stop_token_ids=(999,))}, "sampling.stop_token_ids[0]"),
        ({"stop": ("x",) * 2000}, "stop"),
        ({"stop": ("",)}, "stop[0]"),
        ({"stop": ("\ud800",)}, "stop[0]"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 201}, "request_id"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"tenant": "\0"}, "tenant"),
    ],
)
async def test_bad_input_names_its_field(bench: Bench, fields: dict[str, object], field: str) -> None:
    session = await bench.open()
    with pytest.raises(RequestError) as bad:
        await bench.say(session.session_id, "x", **fields)
    assert bad.value.field == field
    await untouched(bench, session.session_id, 1)


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": "gpt"}, "model"),
        ({"system": "\ud800"}, "system"),
        ({"tools": ({"type": "function"},)}, "tools[0]"),
        ({"tools": ({"type": "function", "function": {"name": ""}},)}, "tools[0].function.name"),
        ({"tools": ({"type": "function", "function": {"name": "f", "parameters": {"x": "\ud800"}}},)}, "tools"),
        ({"tools": ({"type": "function", "function": {"name": "f"}},) * 1001}, "tools"),
        ({"tools": ({"type": "function", "function": {"name": "f", "parameters": nested(500)}},)}, "tools"),
        ({"tenant": "x" * 201}, "tenant"),
        ({"request_id": "\t"}, "request_id"),
    ],
)
async def test_sessions_that_cannot_be_opened(bench: Bench, fields: dict[str, object], field: str) -> None:
    with pytest.raises(RequestError) as bad:
        await bench.open(**fields)
    assert bad.value.field == field


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [({"page_size": 0}, "page_size"), ({"page_size": 1001}, "page_size"), ({"page_token": "\n"}, "page_token")],
)
async def test_lists_that_cannot_be_made(bench: Bench, request_fields: dict[str, object], field: str) -> None:
    with pytest.raises(RequestError) as bad:
        await bench.manager.list(ListSessions(**request_fields))  # type: ignore[arg-type]
    assert bad.value.field == field


async def test_a_template_that_refuses(bench: Bench) -> None:
    bench.template = type(bench.template)("{{ raise_exception('no tools here') }}")
    bench.restart()
    session = await bench.open()
    with pytest.raises(RequestError, match="no tools here") as refused:
        await bench.say(session.session_id, "x")
    assert refused.value.field == "input.messages"
    text, _ = await bench.say(session.session_id, None, input=TextInput("x"), sampling=GREEDY)
    assert text


async def test_what_was_closed_long_ago_is_deleted(bench: Bench) -> None:
    closed, kept = await bench.open(), await bench.open(request_id="o")
    await bench.say(closed.session_id, "x", request_id="r")
    await bench.say(kept.session_id, "y")
    fork = await bench.manager.fork(ForkRequest(session_id=closed.session_id, at=AtTurn(1)))
    await bench.say(closed.session_id, "only here")
    await bench.manager.close(CloseRequest(session_id=closed.session_id))
    for days, gone in ((1, False), (5, False), (2, True)):
        bench.clock.now += days * 86_400
        await bench.open()
        await bench.store.prune(0.0)  # behind the one that was asked for
        assert (await bench.store.session(closed.session_id) is None) == gone
    assert await bench.store.answer(closed.session_id, "r") is None
    assert (await bench.log(fork.session_id)).num_tokens == fork.num_tokens
    assert (await bench.manager.get(kept.session_id)).num_turns == 1


async def test_a_store_that_cannot_be_tidied_up_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> int:
        raise StoreError("the disk failed")

    monkeypatch.setattr("sessile.sessions.store.database.SessionDatabase.prune", fails)
    session = await bench.open()
    await untouched(bench, session.session_id, 1)
    assert "not tidied up: the disk failed" in caplog.text


async def test_the_models_other_names(bench: Bench) -> None:
    bench.manager = SessionManager(
        bench.store,
        bench.engine,
        bench.tokenizer,
        bench.template,
        clock=bench.clock,
        steady=bench.clock,
        model_aliases={"default"},
    )
    for name in (None, "scripted", "default"):
        assert (await bench.open(model=name)).model == "scripted"
        await bench.complete([user("x")], model=name)
    with pytest.raises(RequestError, match="not served here"):
        await bench.open(model="other")
