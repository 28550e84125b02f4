"""``bench-agent convert``: from one trace format to another."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import BenchError
from ..report.terminal import terminal
from ..traces.formats import FORMATS, format_named, read_workload
from ..traces.losses import fewer, losses
from ..traces.source import BadLines
from .options import add_format_flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    written = [known.name for known in FORMATS if known.write is not None]
    parser.add_argument("source", type=Path, help="a trace file or folder")
    parser.add_argument("result", type=Path, help="the file to write")
    parser.add_argument("--to", required=True, choices=written, metavar="NAME", help=", ".join(written))
    add_format_flags(parser)


def execute(given: argparse.Namespace) -> int:
    """Raises BenchError."""
    if given.result.exists() and given.source.exists() and given.result.samefile(given.source):
        raise BenchError(f"{given.result} is the trace itself", field="result", remedy="name another file to write")
    workload = read_workload(given.source, BadLines(skip=given.skip_bad), given.format)
    target = format_named(given.to)
    if target.write is None:
        raise BenchError(f"{target.name} is only read")
    try:
        target.write(workload, given.result)
    except OSError as error:
        raise BenchError(
            f"{given.result} cannot be written: {error.strerror or error}", field="result", remedy="name another file"
        ) from None
    console = terminal()
    console.print(
        f"{workload.format} to {target.name}: {len(workload.sessions)} sessions, {workload.num_turns} turns, "
        f"{given.result}",
        soft_wrap=True,
    )
    again = read_workload(given.result, BadLines(), target.name)
    lost = (*losses(workload, target.keeps), *fewer(workload, again, target.keeps))
    for note in (*workload.notes, *lost):
        console.print(f"note: {note}", style="dim", soft_wrap=True)
    return 0
