"""The same request id again gets the same answer, whatever happened in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from manager_bench import Bench, user

from sessile.server.engine.sampling_params import SamplingParams
from sessile.sessions.errors import RequestError, SessionBusy
from sessile.sessions.manager import (
    AppendRequest,
    CloseRequest,
    ForkRequest,
    GenerateRequest,
    ListSessions,
    MessagesInput,
    OpenSession,
    RollbackRequest,
    TextDelta,
    TextInput,
    TurnFinished,
)
from sessile.sessions.session import AtTurn


async def test_every_change_is_answered_once(bench: Bench) -> None:
    opening = OpenSession(system="s", request_id="1")
    session = await bench.manager.open(opening)
    ask: dict[str, Any] = {"session_id": session.session_id}
    changes: list[tuple[Any, Any]] = [
        (bench.manager.append, AppendRequest(**ask, input=TextInput("x"), request_id="2", expected_version=1)),
        (bench.manager.rollback, RollbackRequest(**ask, to=AtTurn(0), request_id="3", expected_version=2)),
        (bench.manager.fork, ForkRequest(**ask, request_id="4", expected_version=3)),
        (bench.manager.close, CloseRequest(**ask, request_id="5", expected_version=3)),
    ]
    answers = [await change(request) for change, request in changes]
    bench.restart()
    assert await bench.manager.open(opening) == session
    names = ("append", "rollback", "fork", "close")
    for name, (_, request), answer in zip(names, changes, answers, strict=True):
        assert await getattr(bench.manager, name)(request) == answer
    assert len((await bench.manager.list(ListSessions())).sessions) == 1


async def test_a_turn_is_told_again(bench: Bench) -> None:
    session = await bench.open()
    request = GenerateRequest(
        session_id=session.session_id,
        input=MessagesInput((user("x"),)),
        sampling=SamplingParams(temperature=0, logprobs=2),
        request_id="r",
        expected_version=1,
    )
    first = [event async for event in bench.manager.generate(request)]
    await bench.say(session.session_id, "another turn")
    bench.restart()
    again = [event async for event in bench.manager.generate(request)]
    deltas = [event for event in first if isinstance(event, TextDelta)]
    assert len(again) == 2
    assert isinstance(again[0], TextDelta)
    assert again[0].text == "".join(delta.text for delta in deltas)
    assert again[0].token_ids == tuple(token for delta in deltas for token in delta.token_ids)
    assert again[0].logprobs == tuple(one for delta in deltas for one in delta.logprobs)
    assert isinstance(first[-1], TurnFinished)
    assert isinstance(again[1], TurnFinished)
    assert again[1].replayed
    assert (again[1].version, again[1].usage, again[1].num_tokens) == (2, first[-1].usage, first[-1].num_tokens)
    assert len(bench.engine.submitted) == 2


async def test_another_request_under_a_used_id(bench: Bench) -> None:
    session = await bench.open(request_id="o")
    await bench.say(session.session_id, "x", request_id="r")
    ask = {"session_id": session.session_id, "request_id": "r"}
    for change in (
        bench.say(session.session_id, "y", request_id="r"),
        bench.say(session.session_id, "x", request_id="r", sampling=SamplingParams(temperature=0.5)),
        bench.manager.append(AppendRequest(**ask, input=TextInput("x"))),
        bench.manager.rollback(RollbackRequest(**ask, to=AtTurn(0))),
        bench.manager.fork(ForkRequest(**ask)),
        bench.manager.close(CloseRequest(**ask)),
        bench.open(request_id="o", system="other"),
    ):
        with pytest.raises(RequestError) as reused:
            await change
        assert reused.value.field == "request_id"
    assert (await bench.manager.get(session.session_id)).version == 2


async def test_ids_belong_to_a_session_or_a_tenant(bench: Bench) -> None:
    a = await bench.open(tenant="a", request_id="same")
    b = await bench.open(tenant="b", request_id="same")
    assert a.session_id != b.session_id
    c = await bench.open(tenant="a", request_id="other")
    await bench.say(a.session_id, "x", tenant="a", request_id="same")
    _, finished = await bench.say(c.session_id, "y", tenant="a", request_id="same")
    assert not finished.replayed


async def test_the_same_request_while_it_runs(bench: Bench) -> None:
    session = await bench.open()
    gate = asyncio.Event()
    bench.engine.will_say([64, 65, 257], gate=gate)
    request = GenerateRequest(session_id=session.session_id, input=TextInput("x"), request_id="r")
    running = bench.manager.generate(request)
    await anext(running)
    with pytest.raises(SessionBusy, match="running already") as busy:
        await anext(bench.manager.generate(request))
    assert busy.value.retry_after_s == 1.0
    gate.set()
    assert [event async for event in running]
    again = [event async for event in bench.manager.generate(request)]
    assert again[0] == TextDelta(text="ab", token_ids=(64, 65, 257))


async def test_an_old_answer_while_another_turn_runs(bench: Bench) -> None:
    session = await bench.open()
    text, _ = await bench.say(session.session_id, "x", request_id="r")
    gate = asyncio.Event()
    bench.engine.will_say([64, 65, 257], gate=gate)
    running = bench.manager.generate(GenerateRequest(session_id=session.session_id, input=TextInput("x")))
    await anext(running)
    again, finished = await bench.say(session.session_id, "x", request_id="r")
    assert (again, finished.replayed) == (text, True)
    gate.set()
    await running.aclose()


@pytest.mark.parametrize("kind", ["open", "fork"])
async def test_the_same_request_twice_at_once(bench: Bench, kind: str) -> None:
    session = await bench.open()

    def change() -> Any:
        if kind == "open":
            return bench.open(system="s", request_id="r")
        return bench.manager.fork(ForkRequest(session_id=session.session_id, request_id="r"))

    views = await asyncio.gather(*(change() for _ in range(8)))
    assert len({view.session_id for view in views}) == 1
    assert len((await bench.manager.list(ListSessions())).sessions) == 2
