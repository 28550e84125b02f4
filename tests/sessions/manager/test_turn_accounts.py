"""What a session remembers of its turns beside their tokens."""

from __future__ import annotations

import pytest
from manager_bench import Bench

from sessile.server.engine.messages import FinishReason
from sessile.sessions.errors import SessionNotFound
from sessile.sessions.manager import AppendRequest, CloseRequest, ForkRequest, RollbackRequest, TextInput
from sessile.sessions.session import AtToken, AtTurn


async def test_turns_add_up_to_the_log_and_outlive_the_server(bench: Bench) -> None:
    session = await bench.open(system="be good")
    assert await bench.manager.turns(session.session_id) == ()
    ends = [(await bench.say(session.session_id, f"turn {index}"))[1] for index in range(3)]
    await bench.manager.append(AppendRequest(session_id=session.session_id, input=TextInput("more")))
    ends.append((await bench.say(session.session_id))[1])
    bench.restart()
    turns = await bench.manager.turns(session.session_id)
    assert [turn.turn for turn in turns] == [1, 2, 3, 4]
    assert [turn.usage for turn in turns] == [end.usage for end in ends]
    assert [turn.num_tokens for turn in turns] == [end.num_tokens for end in ends]
    assert sum(turn.input_tokens + turn.output_tokens for turn in turns) == ends[-1].num_tokens
    assert {turn.finish_reason for turn in turns} == {FinishReason.STOP}
    times = [turn.finished_at for turn in turns]
    assert all(isinstance(time, float) for time in times)
    assert times == sorted(times)  # type: ignore[type-var]


async def test_forks_have_their_sources_turns_and_rollbacks_lose_them(bench: Bench) -> None:
    session = await bench.open()
    for index in range(3):
        await bench.say(session.session_id, f"turn {index}")
    whole = await bench.manager.turns(session.session_id)
    fork = await bench.manager.fork(ForkRequest(session_id=session.session_id, at=AtTurn(2)))
    cut = AtToken(whole[1].num_tokens - 1)
    await bench.manager.rollback(RollbackRequest(session_id=session.session_id, to=cut))
    assert await bench.manager.turns(fork.session_id) == whole[:2]
    assert await bench.manager.turns(session.session_id) == whole[:1]
    await bench.manager.close(CloseRequest(session_id=session.session_id))
    with pytest.raises(SessionNotFound):
        await bench.manager.turns(session.session_id)
    with pytest.raises(SessionNotFound):
        await bench.manager.turns(fork.session_id, "b")
    assert await bench.store.prune(bench.clock.now + 1) > 0
    assert await bench.manager.turns(fork.session_id) == whole[:2]


async def test_accounts_go_with_their_entries(bench: Bench) -> None:
    session = await bench.open()
    await bench.say(session.session_id, "hi")
    place = (await bench.log(session.session_id)).place
    await bench.manager.close(CloseRequest(session_id=session.session_id))
    assert len(await bench.store.accounts(place)) == 1
    await bench.store.prune(bench.clock.now + 1)
    assert await bench.store.accounts(place) == {}
