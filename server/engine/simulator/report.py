"""What a simulation says: latency by class, fairness between tenants, the longest stall."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import msgspec
import numpy as np

from ..engine_config import EngineConfig
from ..messages import Priority
from .engine import SimulatedEngine, TurnRecord
from .step_cost import StepCost
from .workload import Arrival


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """One class of turns. Seconds, but the gaps: milliseconds."""

    priority: str
    turns: int
    first_token_p50_s: float
    first_token_p99_s: float
    first_token_max_s: float
    gap_p99_ms: float  # of the longest gap between two tokens of each turn


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run, and the bounds.

    ``stalled_share``: of the steps in which somebody decoded beside a prefill, those longer than the bound.
    ``passed_when_due``: turns that one of the same tenant and class started before, though it came after they were due.
    ``spread_of_bound``: how far the tenant served most was ahead of the one served least at most, among those with
    interactive turns waiting, as a part of what fairness allows.
    """

    speed: float
    turns: int
    seconds: float
    steps: int
    busy_share: float
    cached_share: float
    most_waiting: int
    preemptions: int
    longest_stall_ms: float
    stalled_share: float
    passed_when_due: int
    spread_of_bound: float
    classes: tuple[ClassReport, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """What is simulated: an engine's configuration, its steps' cost, its pool."""

    config: EngineConfig
    cost: StepCost
    num_blocks: int


def simulate(world: World, turns: Iterable[Arrival], speed: float) -> LoadReport:
    """Run ``turns`` to their ends."""
    engine = SimulatedEngine(world.config, world.cost, world.num_blocks)
    for arrival in turns:
        engine.run_until(arrival.time)
        engine.submit(arrival.turn)
    engine.run()
    return summarise(engine, world.config, speed)


def summarise(engine: SimulatedEngine, config: EngineConfig, speed: float) -> LoadReport:
    """Of a run that has ended."""
    max_stall_ms, max_sequences = config.max_stall_ms, config.max_sequences
    records = list(engine.records.values())
    mixed = np.array([each.seconds for each in engine.steps if each.decode_tokens and each.prefill_tokens] or [0.0])
    prompt = sum(len(each.turn.token_ids) for each in records)
    return LoadReport(
        speed=speed,
        turns=len(records),
        seconds=engine.now,
        steps=len(engine.steps),
        busy_share=sum(each.seconds for each in engine.steps) / engine.now if engine.now else 0.0,
        cached_share=sum(each.num_cached for each in records) / prompt if prompt else 0.0,
        most_waiting=max((each.num_waiting for each in engine.steps), default=0),
        preemptions=engine.scheduler.num_preemptions,
        longest_stall_ms=1000 * float(mixed.max()),
        passed_when_due=_passed_when_due(records),
        spread_of_bound=engine.widest_spread / _fair_spread(records, max_sequences),
        stalled_share=float((mixed > max_stall_ms / 1000 * 1.0001).mean()) if max_stall_ms else 0.0,
        classes=tuple(
            _class_report(priority, [each for each in records if each.turn.priority is priority])
            for priority in Priority
            if any(each.turn.priority is priority for each in records)
        ),
    )


def _passed_when_due(records: list[TurnRecord]) -> int:
    latest: dict[tuple[str, Priority], float] = {}  # arrival among those that started so far
    passed = 0
    for record in sorted(records, key=lambda each: (each.started or 0.0, each.arrival)):
        group = record.turn.tenant, record.turn.priority
        passed += latest.get(group, 0.0) > record.due
        latest[group] = max(latest.get(group, 0.0), record.arrival)
    return passed


def _fair_spread(records: list[TurnRecord], max_sequences: int) -> float:
    """The prompt of one turn, and twice the outputs of those that run at once."""
    prompt = max((len(each.turn.token_ids) for each in records), default=1)
    output = max((each.turn.sampling.max_tokens or 0 for each in records), default=0)
    return prompt + 2 * max_sequences * output


def _class_report(priority: Priority, records: list[TurnRecord]) -> ClassReport:
    first = np.array([each.first_token_s for each in records if each.first_token_s is not None] or [0.0])
    gaps = np.array([each.longest_gap for each in records if each.longest_gap] or [0.0])
    return ClassReport(
        priority=priority.name.lower(),
        turns=len(records),
        first_token_p50_s=float(np.percentile(first, 50)),
        first_token_p99_s=float(np.percentile(first, 99)),
        first_token_max_s=float(first.max()),
        gap_p99_ms=1000 * float(np.percentile(gaps, 99)),
    )


def table(reports: list[LoadReport]) -> str:
    """As lines of text."""
    lines = [
        f"{'load':>5} {'busy':>5} {'cached':>6} {'waiting':>7} {'stall ms':>8}  "
        "class        turns  TTFT p50      p99      max  gap p99"
    ]
    for report, each in [(run, each) for run in reports for each in run.classes]:
        lines.append(
            f"{report.speed:5.2f} {report.busy_share:5.0%} {report.cached_share:6.0%} {report.most_waiting:7d} "
            f"{report.longest_stall_ms:8.1f}  {each.priority:11} {each.turns:6d} {each.first_token_p50_s:8.2f}s "
            f"{each.first_token_p99_s:7.2f}s {each.first_token_max_s:7.2f}s {each.gap_p99_ms:6.0f}ms"
        )
    passed = sum(report.passed_when_due for report in reports)
    spread = max((report.spread_of_bound for report in reports), default=0.0)
    lines.append(f"passed when due: {passed} turns; tenants apart by at most {spread:.0%} of what fairness allows")
    return "\n".join(lines)
