"""The standard report as Markdown, beside its plots: what the repository shows of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..load.overhead import Overhead
from ..quality.agreement import Agreement
from .comparison import warnings_of
from .files import write_whole
from .knee import throughput
from .page import facts_of
from .record import RunRecord
from .table import markdown_table
from .wording import WIRES, milliseconds, rate, share

_HEAD = """# Measured

Made by `make bench` ({date}); by hand nothing is changed here. How to read and repeat it:
[bench-agent](../bench-agent.md). In parentheses: 95% intervals. The dotted lines in the plots are this machine's limit,
measured in the same run: the rate at which it multiplies matrices and streams memory ({flops:.0f} GFLOP/s,
{stream:.1f} GB/s), for this model's weights.
"""


@dataclass(frozen=True, slots=True)
class StandardReport:
    """All that was found. ``points``: sessions at a time, one for each of ``swept``."""

    compared: tuple[RunRecord, ...]
    swept: tuple[RunRecord, ...]
    points: tuple[str, ...]
    knee: int | None
    agreement: Agreement | None
    overhead: tuple[Overhead, ...]
    left_out: tuple[str, ...]


def write_standard_report(report: StandardReport, folder: Path) -> Path:
    """Write ``README.md`` beside the plots; returns it."""
    first = report.compared[0]
    limits = first.limits
    head = _HEAD.format(
        date=first.provenance.created_at[:10],
        flops=0 if limits is None else limits.rates.gemm_flops / 1e9,
        stream=0 if limits is None else limits.rates.stream_bytes / 1e9,
    )
    work = first.workload
    load = f"{work.sessions} sessions one after the other, {work.turns} turns, {first.load.repeats} repeats"
    parts = [head, *(f"Mind: {line}.\n" for line in warnings_of(report.compared))]
    if report.left_out:
        parts.append(f"Left out, for want of time: {', '.join(report.left_out)}.\n")
    parts += [f"## `{first.workload.name}`: {load}\n", markdown_table(report.compared)]
    parts += [_picture(folder, name) for name in ("ttft", "turns", "speed", "tokens")]
    if report.swept:
        parts += ["## More sessions at a time\n", _sweep_table(report), _picture(folder, "knee")]
    if report.agreement is not None:
        parts += ["## The same answers\n", _agreement(report.agreement)]
    if report.overhead:
        parts += ["## What the harness adds\n", *map(_overhead, report.overhead)]
    parts += ["## Where it comes from\n", _facts(report)]
    return write_whole(folder / "README.md", "\n".join(part for part in parts if part).encode())


def _picture(folder: Path, name: str) -> str:
    return f"![{name}]({name}.png)\n" if (folder / f"{name}.png").exists() else ""


def _sweep_table(report: StandardReport) -> str:
    columns: tuple[tuple[str, Callable[[RunRecord], str]], ...] = (
        ("output tokens", lambda r: rate(throughput(r), "tok/s")),
        ("TTFT later p50", lambda r: milliseconds(r.summary.ttft_later_s.p50 if r.summary.ttft_later_s else None)),
        ("TTFT later p99", lambda r: milliseconds(r.summary.ttft_later_s.p99 if r.summary.ttft_later_s else None)),
        ("TPOT p50", lambda r: milliseconds(r.summary.tpot_s.p50 if r.summary.tpot_s else None)),
        ("reused", lambda r: share(r.summary.hit_rates.server)),
        ("reusable", lambda r: share(r.summary.hit_rates.reusable)),
    )
    lines = ["| sessions | " + " | ".join(name for name, _ in columns) + " |", "|---|" + "---|" * len(columns)]
    for place, (point, record) in enumerate(zip(report.points, report.swept, strict=True)):
        mark = " (knee)" if place == report.knee else ""
        lines.append(f"| {point}{mark} | " + " | ".join(text(record) for _, text in columns) + " |")
    return "\n".join(lines) + "\n"


def _agreement(found: Agreement) -> str:
    difference = ""
    if found.largest_logprob_difference is not None:
        difference = f"; log-probabilities differ by {found.largest_logprob_difference:.6f} at most"
    return (
        f"Greedy, warm cache against cold: {share(found.identical)} of {found.answers} answers identical, "
        f"{share(found.before_difference)} of the {found.unit} before a first difference{difference}.\n"
    )


def _overhead(found: Overhead) -> str:
    return (
        f"By {WIRES[found.wire]}, against a server of known times, {found.sessions} sessions at a time, "
        f"{found.pieces_per_s:,.0f} pieces a second: the first piece late by {found.ttft_p50_s * 1000:.2f} ms (p50) "
        f"and {found.ttft_p99_s * 1000:.2f} ms (p99), the request's way included; "
        f"any piece by {found.piece_p50_s * 1000:.2f} ms and {found.piece_p99_s * 1000:.2f} ms.\n"
    )


def _facts(report: StandardReport) -> str:
    records = report.compared
    lines = ["| |" + "".join(f" {record.label} |" for record in records), "|---|" + "---|" * len(records)]
    skipped = ("server: address",)
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in facts_of(records) if name not in skipped]
    return "\n".join(lines) + "\n"
