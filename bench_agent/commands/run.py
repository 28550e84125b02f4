"""``bench-agent run``: one workload against one server."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from ..measurement import Measurement
from ..report.record import RunRecord
from ..report.table import print_table
from ..report.terminal import terminal
from ..targets.target import TargetSpec
from .measuring import measure_target, plan_of, result_folder
from .options import (
    add_judgement_flags,
    add_load_flags,
    add_target_flags,
    add_workload_flags,
    load_shape,
    load_workload,
    target_spec,
)
from .signals import Signals


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    add_target_flags(parser)
    add_workload_flags(parser)
    add_load_flags(parser)
    add_judgement_flags(parser)


def execute(given: argparse.Namespace) -> int:
    """0: all turns were sent; 3: the result is partial; 4: turns failed. Raises BenchError."""
    workload, changes = load_workload(given)
    label = given.label or given.serve or given.target or "run"
    folder = result_folder(given, label)
    plan = plan_of(given, workload, changes, load_shape(given), label)
    record = asyncio.run(_measure(target_spec(given), plan, folder))
    console = terminal()
    print_table([record], console)
    if not record.complete:
        console.print(
            f"PARTIAL ({record.ended}): the turns that were over by then are kept", style="bold red", soft_wrap=True
        )
    missing = record.missing()
    if missing:
        console.print(f"not to be compared: the record lacks {', '.join(missing)}", style="yellow", soft_wrap=True)
    console.print(f"result: {folder}", soft_wrap=True)
    if not record.complete:
        return 3
    return 4 if record.summary.counts.failed else 0


async def _measure(spec: TargetSpec, plan: Measurement, folder: Path) -> RunRecord:
    with Signals() as signals:
        return await measure_target(signals, spec, plan, folder)
