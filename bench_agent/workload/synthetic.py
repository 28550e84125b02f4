"""A made-up agent: sessions whose sizes and gaps come from distributions, the same for the same seed."""

from __future__ import annotations

import random

import msgspec

from .distributions import Distribution, fixed
from .plan import Message, MessagesPrompt, SessionPlan, Turn, Workload
from .text import made_up_text


class AgentShape(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent's sessions look like. Lengths are tokens.

    ``system_tokens`` are the same text in all sessions; ``fork_share`` of the turns are tried twice from the same
    point (the second try is the one that goes on, as after a rollback); ``subagent_share`` of the sessions send
    ``fan_out`` sub-agents of ``subagent_turns`` turns each, once, from the middle of the session.
    """

    system_tokens: int = 1000
    task_tokens: Distribution = fixed(60)
    turns: Distribution = fixed(8)
    tool_result_tokens: Distribution = fixed(150)
    output_tokens: Distribution = fixed(48)
    gap_s: Distribution = fixed(0.2)
    fork_share: float = 0.0
    subagent_share: float = 0.0
    fan_out: Distribution = fixed(2)
    subagent_turns: Distribution = fixed(3)
    says: str = ""

    def scaled(self, factor: float) -> AgentShape:
        """All lengths in tokens times ``factor``; turns, gaps and shares stay."""
        return msgspec.structs.replace(
            self,
            system_tokens=max(1, round(self.system_tokens * factor)),
            task_tokens=self.task_tokens.scaled(factor),
            tool_result_tokens=self.tool_result_tokens.scaled(factor),
            output_tokens=self.output_tokens.scaled(factor),
        )


def synthetic_workload(name: str, shape: AgentShape, *, sessions: int, seed: int) -> Workload:
    """``sessions`` sessions of such an agent."""
    system = "You are an agent." + made_up_text(random.Random(f"system/{seed}"), shape.system_tokens)
    plans = tuple(_SessionWriter(shape, system, number, seed).session() for number in range(sessions))
    return Workload(name=name, format="synthetic", sessions=plans, seed=seed)


class _SessionWriter:
    """Writes one session, turn by turn."""

    def __init__(self, shape: AgentShape, system: str, number: int, seed: int) -> None:
        self._shape = shape
        self._system = Message("system", system)
        self._number = number
        self._rng = random.Random(f"session/{seed}/{number}")
        self._turns: list[Turn] = []

    def session(self) -> SessionPlan:
        shape, rng = self._shape, self._rng
        num_turns = shape.turns.count(rng)
        sends_at = num_turns // 2 if rng.random() < shape.subagent_share and num_turns > 1 else -1
        task = f"Task {self._number}:" + made_up_text(rng, shape.task_tokens.count(rng))
        last = self._add((self._system, Message("user", task)), None, ())
        for index in range(1, num_turns):
            awaited = self._sub_agents(last) if index == sends_at else ()
            tries = 2 if rng.random() < shape.fork_share else 1
            point = last
            for _ in range(tries):
                last = self._add((self._tool_result(),), point, awaited or (last,))
                awaited = ()
        return SessionPlan(session_id=f"agent-{self._number}", turns=tuple(self._turns))

    def _sub_agents(self, sent_by: int) -> tuple[int, ...]:
        """All sub-agents' turns; returns what the next turn waits for."""
        shape, rng = self._shape, self._rng
        ends = [sent_by]
        for number in range(shape.fan_out.count(rng)):
            task = f"Part {number} of task {self._number}:" + made_up_text(rng, shape.task_tokens.count(rng))
            name = f"sub-{number}"
            last = self._add((self._system, Message("user", task)), None, (sent_by,), name)
            for _ in range(shape.subagent_turns.count(rng) - 1):
                last = self._add((self._tool_result(),), last, (last,), name)
            ends.append(last)
        return tuple(ends)

    def _tool_result(self) -> Message:
        tokens = self._shape.tool_result_tokens.count(self._rng)
        return Message("user", "Tool result:" + made_up_text(self._rng, tokens))

    def _add(
        self, messages: tuple[Message, ...], continues: int | None, after: tuple[int, ...], agent: str = "main"
    ) -> int:
        self._turns.append(
            Turn(
                prompt=MessagesPrompt(messages),
                continues=continues,
                after=after,
                gap_s=round(self._shape.gap_s.sample(self._rng), 4) if after else 0.0,
                output_tokens=self._shape.output_tokens.count(self._rng),
                agent=agent,
            )
        )
        return len(self._turns) - 1
