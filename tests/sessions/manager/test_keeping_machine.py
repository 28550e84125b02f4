"""Hints, suspend, resume, turns, forks and restarts in any order, against a plain model of what then holds."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from manager_bench import Bench

from sessile.server.engine.cache_messages import SupersedePath
from sessile.sessions.keeping import ExpectedOutput, Final, Hint, Retain, ToolWait, WillBranch
from sessile.sessions.manager import ForkRequest, HintRequest, ResumeRequest, RollbackRequest, SuspendRequest
from sessile.sessions.session import AtTurn


@dataclass
class Expected:
    """What ought to hold for the one session that is played with."""

    version: int = 1
    tokens: int = 0
    ends: list[int] = field(default_factory=list)  # of turns
    priority: int | None = None
    branch: tuple[int, int] | None = None  # at which token, how many forks are left
    output: str | None = None
    final: bool = False
    suspended: bool = False


HINTS = st.one_of(
    st.builds(Retain, priority=st.integers(-3, 3), ttl_s=st.sampled_from([None, 0.0, 1e6])),
    st.builds(WillBranch, branches=st.integers(1, 2)),
    st.builds(ExpectedOutput, text=st.sampled_from(["abc", "xyz"])),
    st.builds(Final),
    st.builds(ToolWait, tool=st.just("grep"), p50_s=st.just(1.0)),
)
STEPS = st.lists(
    st.one_of(
        HINTS,
        st.sampled_from(["say", "say", "suspend", "resume", "fork", "fork at 1", "rollback", "restart", "again"]),
    ),
    min_size=3,
    max_size=14,
)


class Play:
    """Applies steps to the manager and to the model."""

    def __init__(self, bench: Bench, session_id: str) -> None:
        self._bench = bench
        self._session_id = session_id
        self.expected = Expected()
        self._asked: list[tuple[Any, Any, Any]] = []  # call's name, request, answer
        self._number = 0

    def _fields(self) -> dict[str, Any]:
        self._number += 1
        return {"session_id": self._session_id, "request_id": f"r{self._number}"}

    async def _ask(self, call: str, request: Any) -> Any:
        answer = await getattr(self._bench.manager, call)(request)
        self._asked.append((call, request, answer))
        return answer

    async def step(self, step: str | Hint) -> None:
        expected = self.expected
        match step:
            case "say":
                _, finished = await self._bench.say(self._session_id, "hi")
                expected.version, expected.tokens = finished.version, finished.num_tokens
                expected.ends.append(finished.num_tokens)
                expected.output, expected.suspended = None, False
            case "suspend":
                await self._ask("suspend", SuspendRequest(**self._fields(), expected_version=expected.version))
                expected.suspended = True
            case "resume":
                await self._ask("resume", ResumeRequest(**self._fields()))
                expected.suspended = False
            case "fork" | "fork at 1":
                at = AtTurn(1) if step == "fork at 1" and expected.ends else None
                await self._ask("fork", ForkRequest(**self._fields(), at=at))
                self._forked(expected.ends[0] if at is not None else expected.tokens)
            case "rollback":
                await self._ask("rollback", RollbackRequest(**self._fields(), to=AtTurn(len(expected.ends) // 2)))
                expected.version += 1
                expected.ends = expected.ends[: len(expected.ends) // 2]
                expected.tokens = expected.ends[-1] if expected.ends else 0
            case "restart":
                await self._bench.manager.care.settled()
                self._bench.restart()
            case "again":
                await self._all_again()
            case _:
                await self._hint(step)  # type: ignore[arg-type]

    def _forked(self, tokens: int) -> None:
        branch = self.expected.branch
        if branch is not None and branch[0] == tokens:
            self.expected.branch = (branch[0], branch[1] - 1) if branch[1] > 1 else None

    async def _hint(self, hint: Hint) -> None:
        expected = self.expected
        await self._ask("hint", HintRequest(**self._fields(), hint=hint))
        match hint:
            case Retain(ttl_s=0.0):
                expected.priority = None
            case Retain(priority=priority):
                expected.priority, expected.final = priority, False
            case WillBranch(branches=branches):
                expected.branch = (expected.tokens, branches)
            case ExpectedOutput(text=text):
                expected.output = text
            case Final():
                expected.final, expected.priority, expected.branch = True, None, None
            case ToolWait():
                pass

    async def _all_again(self) -> None:
        """Each request under its id gets its answer, and nobody else hears of it."""
        await self._bench.manager.care.settled()
        told = len(self._bench.engine.asked)
        for call, request, answer in self._asked:
            assert await getattr(self._bench.manager, call)(request) == answer
        assert len(self._bench.engine.asked) == told

    async def check(self) -> None:
        session = await self._bench.store.session(self._session_id)
        assert session is not None
        keeping, expected = session.keeping, self.expected
        assert (session.version, session.place.num_tokens) == (expected.version, expected.tokens)
        assert (None if keeping.retained is None else keeping.retained.priority) == expected.priority
        branch = None if keeping.branch is None else (keeping.branch.num_tokens, keeping.branch.forks_left)
        assert branch == expected.branch
        assert (keeping.expected_output, keeping.final) == (expected.output, expected.final)
        assert keeping.suspended == expected.suspended


async def play(steps: list[str | Hint], folder: Path) -> None:
    bench = Bench(folder)
    bench.start()
    try:
        game = Play(bench, (await bench.open()).session_id)
        for step in steps:
            await game.step(step)
            await game.check()
        await bench.manager.care.settled()
        wished = [turn.expected_token_ids for turn in bench.engine.submitted]
        assert all(wish in ((), tuple(bench.tokens("abc")), tuple(bench.tokens("xyz"))) for wish in wished)
        for gone in bench.engine.asked:
            if isinstance(gone, SupersedePath):
                assert 0 <= gone.from_token < len(gone.token_ids)
    finally:
        bench.stop()


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_what_was_said_holds(steps: list[str | Hint]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(steps, Path(folder) / "data"))
