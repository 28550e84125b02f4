"""``bench-agent run``: one workload against one server."""

from __future__ import annotations

import argparse
import asyncio

from rich.console import Console

from ..report.table import print_table
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
    record = asyncio.run(measure_target(target_spec(given), plan, folder))
    console = Console()
    print_table([record], console)
    if not record.complete:
        console.print(f"PARTIAL ({record.ended}): the turns that were over by then are kept", style="bold red")
    missing = record.missing()
    if missing:
        console.print(f"not to be compared: the record lacks {', '.join(missing)}", style="yellow")
    console.print(f"result: {folder}")
    if not record.complete:
        return 3
    return 4 if record.summary.counts.failed else 0
