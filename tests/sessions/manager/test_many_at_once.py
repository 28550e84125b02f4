"""Many callers on few sessions, cancelled at random: each commit is one version, every outcome can be found out."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

import pytest
from manager_bench import Bench, user

from sessile.sessions.errors import EngineError, RequestError, SessionBusy, StaleVersion
from sessile.sessions.manager import AppendRequest, ForkRequest, MessagesInput, RollbackRequest, TextInput
from sessile.sessions.session import AtTurn

EXPECTED = (SessionBusy, StaleVersion, EngineError, RequestError)


@dataclass
class Crowd:
    """Callers that each do a few things, and remember what they were told."""

    bench: Bench
    session_ids: list[str]
    chance: random.Random
    asked: list[tuple[str, str]] = field(default_factory=list)
    committed: list[tuple[str, str]] = field(default_factory=list)

    async def caller(self, name: int) -> None:
        for step in range(8):
            session_id, request_id = self.chance.choice(self.session_ids), f"{name}-{step}"
            self.asked.append((session_id, request_id))
            work = asyncio.ensure_future(self.change(session_id, request_id))
            if self.chance.random() < 0.4:
                for _ in range(self.chance.randrange(30)):
                    await asyncio.sleep(0)
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError, *EXPECTED):
                await work
                self.committed.append((session_id, request_id))

    async def change(self, session_id: str, request_id: str) -> None:
        manager, names = self.bench.manager, {"session_id": session_id, "request_id": request_id}
        match self.chance.randrange(8):
            case 0:
                await manager.append(AppendRequest(**names, input=TextInput("appended")))
            case 1:
                turn = self.chance.randrange(3)
                await manager.rollback(RollbackRequest(**names, to=AtTurn(turn)))
            case 2:
                fork = await manager.fork(ForkRequest(session_id=session_id))
                await self.bench.say(fork.session_id, "in the fork")
                raise EngineError("not a change of this session")
            case 3:
                self.bench.engine.will_say([64, 65, 257], fail_after=1)
                await self.bench.say(session_id, "dies", request_id=request_id)
            case _:
                await self.bench.say(session_id, None, request_id=request_id, input=MessagesInput((user("hi"),)))


@pytest.mark.parametrize("seed", range(3))
async def test_many_callers(bench: Bench, seed: int) -> None:
    sessions = [(await bench.open(system="s")).session_id for _ in range(3)]
    crowd = Crowd(bench, sessions, random.Random(seed))
    await asyncio.gather(*(crowd.caller(name) for name in range(12)))
    assert not bench.engine.running
    assert bench.manager.running.in_hand == 0
    bench.restart()
    for session_id in sessions:
        asked = {request for session, request in crowd.asked if session == session_id}
        answered = {request for request in asked if await bench.store.answer(session_id, request) is not None}
        told = {request for session, request in crowd.committed if session == session_id}
        assert told <= answered
        view = await bench.manager.get(session_id)
        assert view.version == 1 + len(answered)
        log = await bench.log(session_id)
        assert (log.num_tokens, log.place.num_turns) == (view.num_tokens, view.num_turns)
        bench.engine.scripts.clear()
        await bench.say(session_id, "and now", expected_version=view.version)
