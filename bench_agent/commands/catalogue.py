"""All commands."""

from __future__ import annotations

from ..cli import Command
from . import compare, convert, overhead, quality, report, run, schema, sweep

COMMANDS = (
    Command("run", "put a workload to a server and measure it", run.add_flags, run.execute),
    Command("compare", "set results of one workload side by side", compare.add_flags, compare.execute),
    Command("sweep", "measure over a load or a server's flag, and find the knee", sweep.add_flags, sweep.execute),
    Command("quality", "check that answers stay the same", quality.add_flags, quality.execute),
    Command("convert", "write a trace in another format", convert.add_flags, convert.execute),
    Command("report", "make the standard report of this repository", report.add_flags, report.execute),
    Command("overhead", "measure the harness itself", overhead.add_flags, overhead.execute),
    Command("schema", "print the JSON schema of a result", schema.add_flags, schema.execute),
)
