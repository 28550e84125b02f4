"""The client against a real gRPC server on a loopback port."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from scripted_engine import ScriptedEngine

from sessile.server.client import (
    NO_RETRIES,
    AsyncSessionClient,
    ConnectionLost,
    ContextOverflow,
    DeadlineExceeded,
    Draining,
    EngineError,
    FinishReason,
    Message,
    ModelChanged,
    RequestError,
    Role,
    SamplingParams,
    SessileError,
    SessionBusy,
    SessionClient,
    SessionNotFound,
    StaleVersion,
    StopCause,
    TextDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStarted,
    ToolChoice,
    ToolChoiceMode,
    TurnInterrupted,
)

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "a": {"type": "integer"}}},
    },
}
GREEDY = SamplingParams(temperature=0.0)


CALL = '{"name": "read_file", "arguments": {"path":  "a.txt"}}'


async def test_a_tool_loop(front: Any) -> None:
    """colibri #1576: the answer to a call continues the very tokens that were sampled."""
    said = [*front.manager._turns.prompts.tokenizer.encode(CALL, allow_special=False), 257]
    async with front.client() as client, client.open(tools=[TOOL]) as session:
        front.engine.will_say(said)
        turn = session.generate(messages="what is in a.txt?", sampling=GREEDY)
        events = [event async for event in turn.events()]
        (call,) = turn.tool_calls
        assert (call.name, call.arguments) == ("read_file", '{"path":  "a.txt"}')
        assert turn.finished.finish_reason is FinishReason.TOOL_CALLS
        (started,) = (event for event in events if isinstance(event, ToolCallStarted))
        assert (started.id, started.name) == (call.id, "read_file")
        fragments = [event.fragment for event in events if isinstance(event, ToolCallArguments)]
        assert "".join(fragments) == call.arguments
        assert turn.token_ids == tuple(said)
        assert turn.text == ""
        prompt = front.engine.submitted[0].token_ids
        await session.tool_result(call.id, "nothing", name="read_file", sampling=GREEDY).wait()
        assert front.engine.submitted[1].token_ids[: len(prompt) + len(said)] == [*prompt, *said]


async def test_a_broken_stream_doubles_no_part_of_a_call(front: Any) -> None:
    said = [*front.manager._turns.prompts.tokenizer.encode(CALL, allow_special=False), 257]
    async with front.client() as client, client.open(tools=[TOOL]) as session:
        front.engine.will_say(said, fail_after=45)
        front.engine.will_say(said)
        turn = session.generate(messages="go", sampling=GREEDY)
        events = [event async for event in turn.events()]
    assert len(front.engine.submitted) == 2
    assert sum(isinstance(event, ToolCallStarted) for event in events) == 1
    fragments = [event.fragment for event in events if isinstance(event, ToolCallArguments)]
    assert ["".join(fragments)] == [call.arguments for call in turn.tool_calls]
    tokens = [token for event in events if isinstance(event, TextDelta) for token in event.token_ids]
    assert tokens == said


async def test_a_call_can_be_required(front: Any) -> None:
    choice = ToolChoice(mode=ToolChoiceMode.REQUIRED, name="read_file", parallel=False)
    async with front.client() as client, client.open(tools=[TOOL]) as session:
        await session.generate(messages="go", sampling=GREEDY, tool_choice=choice).wait()
        grammar = front.engine.submitted[0].sampling.grammar
        assert grammar is not None
        assert "read_file" in grammar.text
        other = ToolChoice(mode=ToolChoiceMode.REQUIRED, name="f")
        with pytest.raises(RequestError) as bad:
            await session.generate(messages="go", tool_choice=other).wait()
        assert bad.value.field == "tool_choice.name"


async def test_a_conversation(front: Any) -> None:
    async with front.client() as client, client.open(system="be good", tools=[TOOL]) as session:
        turn = session.generate(messages="hi", sampling=GREEDY)
        pieces = [delta async for delta in turn]
        assert "".join(piece.text for piece in pieces) == turn.text
        assert turn.finished.finish_reason is FinishReason.STOP
        assert turn.finished.stop_cause is StopCause.END_OF_TURN
        assert turn.finished.usage.tokens_by_source.total == turn.finished.usage.prompt_tokens
        assert session.version == turn.finished.version == 2
        second = await session.generate(messages=[Message(role=Role.USER, content="more")]).wait()
        assert second.turn == 2
        assert second.usage.tokens_by_source.cached == turn.finished.num_tokens
        view = await session.refresh()
        assert (view.num_turns, view.num_tokens, view.tools) == (2, second.num_tokens, (TOOL,))
        assert list(view.tools[0]["function"]["parameters"]["properties"]) == ["path", "a"]


async def test_all_forms_of_input(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        appended = await session.append(messages="first")
        assert appended.usage.prompt_tokens == appended.session.num_tokens == appended.tokens_committed
        await session.generate(sampling=GREEDY).wait()
        call = ToolCall(id="call-1", name="read_file", arguments='{"path": "x"}')
        await session.append(messages=[Message(role=Role.ASSISTANT, content="", tool_calls=(call,))])
        await session.tool_result("call-1", "contents", name="read_file", sampling=GREEDY).wait()
        await session.generate(text="raw text", sampling=GREEDY).wait()
        finished = await session.generate(token_ids=[1, 2, 3], sampling=GREEDY).wait()
        assert front.engine.submitted[-1].token_ids[-3:] == [1, 2, 3]
        assert finished.turn == 4


async def test_fork_and_rollback(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        first = await session.generate(messages="one", sampling=GREEDY).wait()
        second = await session.generate(messages="two", sampling=GREEDY).wait()
        fork = await session.fork(turn=1)
        assert (fork.view.num_tokens, fork.view.parent_session_id) == (first.num_tokens, session.session_id)
        again = await fork.generate(messages="two", sampling=GREEDY).wait()
        assert again.num_tokens == second.num_tokens
        cut = await session.fork(token=first.num_tokens + 3)
        assert cut.view.num_tokens == first.num_tokens + 3
        view = await session.rollback(turn=1)
        assert (view.num_tokens, view.num_turns, view.version) == (first.num_tokens, 1, 4)
        assert [listed.session_id async for listed in client.sessions(page_size=1)] == [
            session.session_id,
            fork.session_id,
            cut.session_id,
        ]


async def test_errors_arrive_with_their_types(front: Any) -> None:
    async with front.client() as client:
        session = await client.open()
        with pytest.raises(SessionNotFound) as not_found:
            await client.session("ses_none")
        assert not_found.value.remedy == "list those that are open, or open one"
        async with front.client("other") as stranger:
            with pytest.raises(SessionNotFound):
                await stranger.session(session.session_id)
        with pytest.raises(RequestError) as bad:
            await session.generate(messages="x", sampling=SamplingParams(temperature=float("nan"))).wait()
        assert bad.value.field == "sampling.temperature"
        with pytest.raises(ContextOverflow) as overflow:
            await session.generate(messages="x" * 5000).wait()
        assert overflow.value.limit == 4096
        with pytest.raises(RequestError) as past:
            await session.rollback(turn=1)
        assert past.value.field == "to.turn"
        twin = await client.session(session.session_id)
        await twin.generate(messages="x").wait()
        with pytest.raises(StaleVersion) as stale:
            await session.generate(messages="x").wait()
        assert (stale.value.expected, stale.value.actual) == (1, 2)
        front.engine.ready = type(front.engine)(fingerprint="weights-2").ready
        with pytest.raises(ModelChanged) as changed:
            await twin.generate(messages="x").wait()
        assert (changed.value.session_fingerprint, changed.value.server_fingerprint) == ("weights-1", "weights-2")


async def test_one_turn_at_a_time(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        gate = asyncio.Event()
        front.engine.will_say([64, 65, 257], gate=gate)
        running = session.generate(messages="x")
        assert (await anext(running)).text == "a"
        twin = await client.session(session.session_id)
        assert twin.view.busy
        with pytest.raises(SessionBusy):
            await twin.generate(messages="y").wait()
        fork = await twin.fork()
        assert (await fork.generate(messages="y").wait()).turn == 1
        gate.set()
        assert (await running.wait()).turn == 1
        assert running.text == "ab"


async def test_a_closed_session_is_not_found(front: Any) -> None:
    async with front.client() as client:
        async with client.open() as session:
            pass
        with pytest.raises(SessionNotFound):
            await client.session(session.session_id)


async def test_closing_a_turn_cancels_it_on_the_engine(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        front.engine.will_say([64, 65, 257], gate=asyncio.Event())
        turn = session.generate(messages="x")
        await anext(turn)
        await turn.aclose()
        await front.engine.idle.wait()
        assert len(front.engine.aborted) == 1
        view = await session.refresh()
        assert (view.version, view.num_tokens) == (1, 0)
        assert (await session.generate(messages="x").wait()).turn == 1


async def test_the_next_turn_may_follow_a_cancelled_one_at_once(front: Any) -> None:
    """Never a session that is busy with a turn which its own client has just given up."""
    async with front.client() as client, client.open() as session:
        for attempt in range(30):
            held = attempt % 2 == 1  # in its middle; else somewhere on its way to the end
            front.engine.will_say([64, 65, 66, 257], gate=asyncio.Event() if held else None)
            turn = session.generate(messages="x")
            for _ in range(1 if held else 1 + attempt % 4):
                await anext(turn, None)
            await turn.aclose()
            await session.generate(messages="y").wait()


async def test_a_deadline_cancels_the_turn(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        front.engine.will_say([64, 65, 257], gate=asyncio.Event())
        with pytest.raises(DeadlineExceeded):
            await session.generate(messages="x", timeout_s=0.2).wait()
        await front.engine.idle.wait()
        assert (await session.refresh()).version == 1
        front.engine.scripts.clear()  # on a slow machine the call may have ended on its way
        assert (await session.generate(messages="x").wait()).turn == 1


async def test_an_engine_that_dies_in_mid_turn_costs_nothing(front: Any) -> None:
    """The turn runs again with the same seed; the caller sees one stream."""
    async with front.client() as client, client.open() as session:
        front.engine.will_say([64, 65, 66, 257], fail_after=2)
        front.engine.will_say([64, 65, 66, 257], tokens_a_step=3)
        turn = session.generate(messages="x")
        assert [delta.text async for delta in turn] == ["a", "b", "c", ""]
        assert turn.token_ids == (64, 65, 66, 257)
        assert front.sleeps.seconds == [0.5]
        first, second = front.engine.submitted
        assert first.sampling.seed == second.sampling.seed is not None
        assert session.version == 2


async def test_a_turn_that_goes_on_otherwise_is_interrupted(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        front.engine.will_say([64, 65, 66, 257], fail_after=2)
        front.engine.will_say([64, 70, 66, 257], tokens_a_step=2, gate=asyncio.Event())
        with pytest.raises(TurnInterrupted):
            await session.generate(messages="x").wait()
        await front.engine.idle.wait()
        assert (await session.refresh()).version == 1


async def test_a_server_that_restarts_in_mid_turn_costs_nothing(front: Any) -> None:
    async with front.client() as client, client.open() as session:
        front.engine.will_say([64, 65, 66, 257], gate=asyncio.Event())
        front.engine.will_say([64, 65, 66, 257])
        turn = session.generate(messages="x")
        assert (await anext(turn)).text == "a"
        await front.restart()
        assert [delta.text async for delta in turn] == ["b", "c", ""]
        assert (await session.refresh()).num_turns == 1


async def test_the_same_request_id_gives_the_same_turn_over_a_restart(front: Any) -> None:
    async with front.client() as client, client.open(request_id="o") as session:
        turn = session.generate(messages="x", sampling=GREEDY, request_id="once")
        finished = await turn.wait()
        await front.restart()
        twin = await client.open(request_id="o")
        assert twin.session_id == session.session_id
        again = twin.generate(messages="x", sampling=GREEDY, request_id="once")
        assert (await again.wait()).replayed
        assert again.text == turn.text
        assert again.token_ids == turn.token_ids
        assert (again.finished.version, again.finished.usage) == (finished.version, finished.usage)
        assert len(front.engine.submitted) == 1
        with pytest.raises(RequestError) as reused:
            await twin.generate(messages="y", sampling=GREEDY, request_id="once").wait()
        assert reused.value.field == "request_id"


async def test_a_draining_server_refuses_with_a_time(front: Any) -> None:
    async with AsyncSessionClient(front.target, retry=NO_RETRIES) as client:
        session = await client.open()
        await front.manager.drain()
        with pytest.raises(Draining) as draining:
            await session.generate(messages="x").wait()
        assert draining.value.retry_after_s == 1.0
        assert (await session.refresh()).version == 1


async def test_an_engine_that_restarts_is_waited_for(front: Any) -> None:
    async with front.client() as client:
        ready, front.engine.ready = front.engine.ready, None

        async def comes_back() -> None:
            front.engine.ready = ready

        front.sleeps.during = [comes_back]
        session = await client.open()
        assert front.sleeps.seconds == [0.5]
        front.engine.ready = None
        with pytest.raises(EngineError):
            await session.generate(messages="x").wait()


async def test_no_server_is_a_connection_lost(front: Any) -> None:
    async with front.client() as client:
        await front.server.stop(0)
        with pytest.raises(ConnectionLost):
            await client.open()
        assert front.sleeps.seconds == [0.2, 0.4, 0.8, 1.6, 3.2]
        await front.server.stop(0)


async def test_the_blocks_own_error_counts(front: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncSessionClient(front.target, retry=NO_RETRIES) as client:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
            async with client.open():
                await front.server.stop(0)
                raise ZeroDivisionError
        assert "was not closed" in caplog.text


def _converse(target: str, engine: ScriptedEngine) -> list[str]:
    said: list[str] = []
    with SessionClient(target) as client, client.open(system="sync") as session:
        said += [delta.text for delta in session.generate(messages="hi", sampling=GREEDY)]
        engine.will_say([64, 65, 66, 257], gate=asyncio.Event())  # it is not over before it is cancelled
        with session.generate(messages="again", sampling=GREEDY) as turn:
            next(turn)
        session.refresh()
        finished = session.generate(messages="again", sampling=GREEDY).wait()
        assert finished.turn == 2
        fork = session.fork(turn=1)
        assert fork.rollback(turn=0).num_tokens == 0
        fork.append(text="abc")
        assert len(client.sessions()) == 2
        assert client.session(fork.session_id).version == fork.version
        with pytest.raises(RequestError):
            fork.rollback(token=99)
        fork.close()
    client.close()
    with pytest.raises(SessileError, match="closed"):
        client.open()
    return said


async def test_the_synchronous_client(front: Any) -> None:
    said = await asyncio.to_thread(_converse, front.target, front.engine)
    async with front.client() as client, client.open(system="sync") as session:
        turn = session.generate(messages="hi", sampling=GREEDY)
        await turn.wait()
    assert "".join(said) == turn.text


def test_the_client_needs_no_more_than_the_core_install() -> None:
    script = (
        "import sys, sessile.server.client\n"
        "heavy = {'torch', 'tokenizers', 'numpy', 'sqlite_utils', 'fastapi', 'zmq', 'transformers', 'blake3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": ".import-root"}
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
