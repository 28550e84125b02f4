"""``bench-agent sweep``: one workload at several loads, or with several values of a server's flag."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ..errors import BenchError
from ..load.runner import Ended
from ..load.shape import Arrivals, LoadShape
from ..measurement import Measurement
from ..report.files import file_name, made_folder
from ..report.knee import plot_knee, throughput
from ..report.record import RunRecord
from ..report.table import print_table
from ..report.terminal import terminal
from ..targets.target import TargetSpec
from . import run
from .measuring import measure_target, plan_of, result_folder
from .options import load_shape, load_workload, target_spec
from .signals import Signals

_LOADS = ("concurrency", "rate")
Point = tuple[TargetSpec, Measurement]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of ``run``, and what is swept."""
    parser.add_argument(
        "--over",
        required=True,
        metavar="NAME=V1,V2,…",
        help="concurrency=1,2,4,8 or rate=0.5,1,2; with --serve also a flag of the server: threads=1,2",
    )
    run.add_flags(parser)


def execute(given: argparse.Namespace) -> int:
    """0: every point was measured; 1: a point could not be; 3: one is partial; 4: turns failed. Raises BenchError."""
    name, values = parse_over(given.over)
    if name not in _LOADS and not given.serve:
        raise BenchError(f"{name} is a flag of the server, which needs --serve", field="over")
    workload, changes = load_workload(given)
    label = given.label or f"sweep-{name.lstrip('-')}"
    spec = target_spec(given)
    plan = plan_of(given, workload, changes, _shape_before(name, values, given), label)
    points = [point_at(name, value, spec, plan) for value in values]
    folder = result_folder(given, label)
    found = asyncio.run(_measure_all(name, values, points, folder))
    if found.records:
        _tell(name, found, folder)
    for value, error in found.failures.items():
        terminal().print(f"{name} {value} was not measured: {error}", style="bold red", soft_wrap=True)
    return found.status()


@dataclass
class _Swept:
    """What was found at the values that were measured, and why others were not."""

    values: list[str] = field(default_factory=list)
    records: list[RunRecord] = field(default_factory=list)
    failures: dict[str, BenchError] = field(default_factory=dict)
    interrupted: bool = False

    def whole(self) -> tuple[list[str], list[RunRecord]]:
        """The points that are not partial."""
        kept = [pair for pair in zip(self.values, self.records, strict=True) if pair[1].complete]
        return [value for value, _ in kept], [record for _, record in kept]

    def status(self) -> int:
        """The exit status."""
        if self.failures:
            return 1
        if self.interrupted or not all(record.complete for record in self.records):
            return 3
        return 4 if any(record.summary.counts.failed for record in self.records) else 0


async def _measure_all(name: str, values: Sequence[str], points: Sequence[Point], folder: Path) -> _Swept:
    """A point that fails leaves the others as they are; a signal ends the sweep."""
    found = _Swept()
    with Signals() as signals:
        for value, (spec, plan) in zip(values, points, strict=True):
            place = made_folder(folder / file_name(f"{name.lstrip('-')}-{value}"))
            try:
                record = await measure_target(signals, spec, plan, place)
            except BenchError as error:
                found.failures[value] = error
                continue
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or not found.records:
                    raise
                task.uncancel()  # a signal while a server started: what was measured before is told
                found.interrupted = True
                break
            found.values.append(value)
            found.records.append(record)
            if record.ended is Ended.INTERRUPTED:
                break
    return found


def parse_over(text: str) -> tuple[str, list[str]]:
    """Raises BenchError for what is not NAME=V1,V2, or has one value twice."""
    name, _, rest = text.partition("=")
    name, values = name.strip(), [value.strip() for value in rest.split(",") if value.strip()]
    if not name.lstrip("-") or not values:
        raise BenchError(f"--over {text!r} is not NAME=V1,V2,…", remedy="for example concurrency=1,2,4,8")
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise BenchError(f"--over has {twice[0]} twice", field="over", remedy="for intervals pass --repeats N")
    return name, values


def point_at(name: str, value: str, spec: TargetSpec, plan: Measurement) -> Point:
    """The server and the measurement at one value of what is swept. Raises BenchError for a load that is none."""
    labelled = replace(plan, label=f"{name.lstrip('-')} {value}")
    if name not in _LOADS:
        flags = (*spec.serve_flags, name, value) if name.startswith("-") else (*spec.serve_flags, f"--{name}", value)
        return replace(spec, serve_flags=flags), labelled
    load = _load_at(name, value, plan.load)
    return spec, replace(labelled, load=load)


def _shape_before(name: str, values: Sequence[str], given: argparse.Namespace) -> LoadShape:
    """The load beside what is swept: a swept rate has its first value, so that arrivals follow it."""
    if name != "rate":
        return load_shape(given)
    return load_shape(argparse.Namespace(**{**vars(given), "rate": _number(name, values[0])}))


def _load_at(name: str, value: str, load: LoadShape) -> LoadShape:
    changed: dict[str, object] = {name: _number(name, value)}
    if name == "rate" and load.arrivals is Arrivals.CLOSED:
        changed["arrivals"] = Arrivals.POISSON
    load = msgspec.structs.replace(load, **changed)
    load.check()
    return load


def _number(name: str, value: str) -> float:
    try:
        return int(value) if name == "concurrency" else float(value)
    except ValueError:
        raise BenchError(f"{value!r} is not a number for {name}", field="over") from None


def _tell(name: str, found: _Swept, folder: Path) -> None:
    console = terminal()
    print_table(found.records, console)
    words = "sessions at a time" if name == "concurrency" else name
    values, records = found.whole()
    if not records:
        return
    path, knee = plot_knee(words, values, records, folder)
    if knee is not None:
        best = throughput(records[knee])
        console.print(f"knee: {name} {values[knee]}, {best.value:,.1f} output tokens a second")
    console.print(f"plot: {path}", soft_wrap=True)
