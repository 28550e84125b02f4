"""``bench-agent sweep``: one workload at several loads, or with several values of a server's flag."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from ..errors import BenchError
from ..load.shape import LoadShape
from ..measurement import Measurement
from ..report.knee import plot_knee, throughput
from ..report.record import RunRecord
from ..report.table import print_table
from ..targets.target import TargetSpec
from . import run
from .measuring import measure_target, plan_of, result_folder
from .options import load_shape, load_workload, target_spec

_LOADS = ("concurrency", "rate")


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
    """0: every point was measured; 3: it was interrupted. Raises BenchError."""
    name, values = parse_over(given.over)
    if name not in _LOADS and not given.serve:
        raise BenchError(f"{name} is a flag of the server, which needs --serve", field="over")
    workload, changes = load_workload(given)
    label = given.label or f"sweep-{name.lstrip('-')}"
    folder = result_folder(given, label)
    spec, shape = target_spec(given), load_shape(given)
    plan = plan_of(given, workload, changes, shape, label)
    records: list[RunRecord] = []
    for value in values:
        point = folder / f"{name.lstrip('-')}-{value}"
        point.mkdir(exist_ok=True)
        records.append(asyncio.run(measure_target(*point_at(name, value, spec, plan), point)))
        if not records[-1].complete:
            break
    _tell(name, values[: len(records)], records, folder)
    return 0 if records[-1].complete else 3


def parse_over(text: str) -> tuple[str, list[str]]:
    """Raises BenchError for what is not NAME=V1,V2."""
    name, _, rest = text.partition("=")
    values = [value for value in rest.split(",") if value]
    if not name or not values:
        raise BenchError(f"--over {text!r} is not NAME=V1,V2,…", remedy="for example concurrency=1,2,4,8")
    return name, values


def point_at(name: str, value: str, spec: TargetSpec, plan: Measurement) -> tuple[TargetSpec, Measurement]:
    """The server and the measurement at one value of what is swept. Raises BenchError for a load that is none."""
    labelled = replace(plan, label=f"{name.lstrip('-')} {value}")
    if name not in _LOADS:
        flags = (*spec.serve_flags, name, value) if name.startswith("-") else (*spec.serve_flags, f"--{name}", value)
        return replace(spec, serve_flags=flags), labelled
    load = _load_at(name, value, plan.load)
    return spec, replace(labelled, load=load)


def _load_at(name: str, value: str, load: LoadShape) -> LoadShape:
    try:
        changed: dict[str, float] = {name: int(value) if name == "concurrency" else float(value)}
    except ValueError:
        raise BenchError(f"{value!r} is not a number for {name}", field="over") from None
    load = msgspec.structs.replace(load, **changed)
    load.check()
    return load


def _tell(name: str, values: list[str], records: list[RunRecord], folder: Path) -> None:
    console = Console()
    print_table(records, console)
    words = "sessions at a time" if name == "concurrency" else name
    path, knee = plot_knee(words, values, records, folder)
    if knee is not None:
        found = throughput(records[knee])
        console.print(f"knee: {name} {values[knee]}, {found.value:,.1f} output tokens a second")
    console.print(f"plot: {path}")
