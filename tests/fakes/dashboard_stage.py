"""A made-up morning of agents, told to an observatory on a clock of its own: enough to fill the dashboard."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from set_clock import SetClock

from sessile.server.engine.cache_messages import CacheEvent, CacheEventKind, CacheView
from sessile.server.engine.messages import (
    AdmittedTurn,
    EngineReady,
    EngineStats,
    FinishReason,
    MissedTokens,
    QueueStats,
    SubmitTurn,
    TierCounters,
    TokensBySource,
    TurnOutput,
    TurnUsage,
)
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.supervisor import EngineState
from sessile.server.engine.turn_watch import TurnWatch
from sessile.server.observe.observatory import Observatory
from sessile.sessions.cache.tree_view import TreeNode


def node(parent: int, start: int, tokens: int, idle_s: float, users: int = 0, owner: str = "") -> TreeNode:
    return TreeNode(
        parent=parent, tenant="", start=start, tokens=tokens, users=users, pins=0,
        owners=(owner,) if owner else (), superseded=False, idle_s=idle_s, hidden_children=0,
    )  # fmt: skip


@dataclass
class MadeUpEngine:
    """What the web asks of an engine, with numbers that grow."""

    state: EngineState = EngineState.READY
    stats: EngineStats = field(default_factory=EngineStats)

    @property
    def info(self) -> EngineReady:
        return EngineReady(
            model="SmolLM2-135M-Instruct", fingerprint="f" * 64, device="cpu", dtype="bfloat16", vocab_size=49152,
            context_length=8192, block_size=16, num_blocks=2900, kernels={},
        )  # fmt: skip

    async def describe_cache(self, most_nodes: int) -> CacheView:
        nodes = [node(-1, 0, 1312, 1.0, users=3)]
        for agent in range(9):
            nodes.append(node(0, 1312, 220 + 40 * agent, 4.0 + 25 * agent, users=int(agent < 3), owner=f"ses_{agent}"))
            own = len(nodes) - 1
            for branch in range(agent % 4):
                nodes.append(node(own, 1532 + 40 * agent, 160 + 90 * branch, 8.0 * (branch + 1) * (agent + 1)))
        nodes.append(node(-1, 0, 640, 900.0))
        return CacheView(
            nodes=tuple(nodes[:most_nodes]), tree_blocks=2140, pinned_blocks=96, block_bytes=368_640,
            break_even_tokens={"host": 32, "disk": 96},
        )  # fmt: skip


class MadeUpMorning:
    """Runs turns of ``agents`` sessions, one after the other, on the observatory."""

    def __init__(self, agents: int = 12, seed: int = 5) -> None:
        self.clock = SetClock(10_000.0)
        self.wall = SetClock(time.time() - 900)
        self.observatory = Observatory(model="SmolLM2-135M-Instruct", clock=self.clock, wall_clock=self.wall)
        self.engine = MadeUpEngine()
        self._random = random.Random(seed)
        self._lengths: dict[str, int] = {}
        self._numbers = 0
        self.names = [f"ses_0195{self._random.getrandbits(160):040x}" for _ in range(agents)]
        self._sources = TokensBySource()
        self._generated = self._drafted = self._accepted = 0

    def play(self, turns: int) -> None:
        """So many turns, with the gaps between them; some sessions fork."""
        for _ in range(turns):
            name = self._random.choice(self.names)
            if self._random.random() < 0.05 and self._lengths.get(name, 0) > 2500:
                fork = f"{name[:12]}{self._random.getrandbits(16):04x}"
                self.observatory.forked(fork, name)
                self._lengths[fork] = self._lengths[name]
                self.names.append(fork)
                name = fork
            self.turn(name)
            self._pass(self._random.expovariate(1 / 3.0))

    def broken(self, name: str) -> None:
        """Two turns of a client that prints the time in its first lines, and one that sorts its tools anew."""
        rules = "Look things up before you answer, and name what you read. " * 50
        for turn, clock in enumerate(("10:15:02", "10:16:40")):
            system = {"role": "system", "content": f"You are the planner. It is {clock}.\n{rules}"}
            talk = [{"role": "user", "content": f"Plan step {step}"} for step in range(turn + 1)]
            self.turn(name, {"messages": [system, *talk]})
        names = ("read_file", "run_tests", "search")
        for order in (names, names[::-1]):
            tools = [
                {"type": "function", "function": {"name": tool, "description": f"{tool}. {rules[:900]}"}}
                for tool in order
            ]
            talk = [{"role": "user", "content": "Which tests fail?"}]
            self.turn(f"{name}-tools", {"messages": talk, "tools": tools})

    def turn(self, name: str, body: dict[str, Any] | None = None) -> None:
        """One turn of a session. ``body``: what was sent, of a turn that reuses little."""
        chance = self._random
        self._numbers += 1
        known = self._lengths.get(name, 0)
        reusable = known or (1312 if self._lengths else 0)
        prompt = (known or 1312) + chance.randrange(90, 400)
        if body is not None:
            reusable = min(reusable, 96)
        evicted = reusable if known and body is None and chance.random() < 0.06 else 0
        host = reusable // 2 if not evicted and body is None and chance.random() < 0.2 else 0
        disk = reusable // 3 if not evicted and not host and chance.random() < 0.08 else 0
        cached = reusable - evicted
        sources = TokensBySource(device=cached - host - disk, host=host, disk=disk, computed=prompt - cached)
        turn = SubmitTurn(
            turn_id=str(self._numbers), token_ids=list(range(prompt)), sampling=SamplingParams(),
            tenant=chance.choice(["", "acme"]) if body is None else "acme", owner=name,
        )  # fmt: skip
        self.observatory.asked(turn, name, name, dict if body is None else body.copy)
        self.observatory.explainer.settle(60)
        self.observatory.turn_started(turn)
        missed = MissedTokens(evicted=evicted)
        self.observatory.turn_admitted(
            AdmittedTurn(turn_id=turn.turn_id, tokens_by_source=sources, reusable_tokens=reusable, missed=missed)
        )
        self._end(turn, name, sources, reusable, missed)
        self._lengths[name] = prompt + 60 if prompt < 7000 else 1400
        self._tell_engine(sources)

    def _end(self, turn: SubmitTurn, name: str, sources: TokensBySource, reusable: int, missed: MissedTokens) -> None:
        watch = TurnWatch(self.clock)
        queue, prefill = self._random.expovariate(20.0), 0.02 + sources.computed / 1500
        load = 0.008 if sources.host or sources.disk else 0.0
        self._pass(queue + load + prefill)
        output = self._random.randrange(20, 110)
        self.observatory.tokens_came(
            turn, *watch.absorb(TurnOutput(turn_id=turn.turn_id, token_ids=[1]))[:2], first=True
        )
        drafted, accepted = output // 2, output // 3
        for _ in range(output - accepted - 1):
            self._pass(0.0098)
            self.observatory.tokens_came(
                turn, *watch.absorb(TurnOutput(turn_id=turn.turn_id, token_ids=[1]))[:2], first=False
            )
        usage = TurnUsage(
            prompt_tokens=len(turn.token_ids), completion_tokens=output, tokens_by_source=sources, missed=missed,
            reusable_tokens=reusable, queue_s=queue, load_s=load, prefill_s=prefill, decode_s=0.0098 * output,
            drafted_tokens=drafted, accepted_tokens=accepted,
        )  # fmt: skip
        watch.absorb(TurnOutput(turn_id=turn.turn_id, token_ids=[], finish_reason=FinishReason.STOP, usage=usage))
        self.observatory.turn_ended(turn, watch)
        self._generated += output
        self._drafted += drafted
        self._accepted += accepted
        tier = "host" if self._random.random() < 0.3 else "device"
        kind = CacheEventKind.DEMOTED if tier == "host" else CacheEventKind.STORED
        self.observatory.kv_events.note(
            CacheEvent(kind=kind, tier=tier, tokens=sources.computed, owner=name, at=self.wall.now)
        )

    def _tell_engine(self, sources: TokensBySource) -> None:
        self._sources = self._sources.plus(sources)
        self.engine.stats = EngineStats(
            steps=self._generated, running=self._random.randrange(1, 6), waiting=self._random.randrange(3),
            total_blocks=2900, free_blocks=310, cached_blocks=2140, used_blocks=450, evicted_blocks=self._numbers * 9,
            queues=(QueueStats(waiting=1), QueueStats(), QueueStats()), prompt_tokens_by_source=self._sources,
            generated_tokens=self._generated, drafted_tokens=self._drafted, accepted_tokens=self._accepted,
            tiers=(tier("host", 0.72, 8.1e9), tier("disk", 0.31, 2.6e9)),
        )  # fmt: skip

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds


def tier(name: str, full: float, speed: float) -> TierCounters:
    return TierCounters(
        tier=name, events={"hits": 412, "misses": 31}, read_bytes=1 << 30, written_bytes=1 << 30,
        used_bytes=int(full * (1 << 30)), capacity_bytes=1 << 30, read_bandwidth=speed, write_bandwidth=speed / 2,
        unavailable="", typical_error=1.2,
    )  # fmt: skip
