"""The record of a quality check: ``quality.json``."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ..report.files import write_whole
from ..report.record import ServerFacts
from .agreement import Agreement
from .perplexity import Perplexity
from .validity import Validity


class ServerQuality(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one server."""

    tool_calls: Validity | None = None
    json_answers: Validity | None = None
    perplexity: Perplexity | None = None


class QualityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``reference``: another server; None: the same one with a cold cache, or nothing to agree with."""

    schema: str = "sessile-quality-record-1"
    created_at: str
    target: ServerFacts
    reference: ServerFacts | None
    compared_with: str
    workload: str
    workload_sha256: str
    agreement: Agreement | None
    target_quality: ServerQuality
    reference_quality: ServerQuality | None


def write_quality(record: QualityRecord, folder: Path) -> Path:
    """Write it; returns its path. Raises BenchError."""
    return write_whole(folder / "quality.json", msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def print_quality(record: QualityRecord, console: Console) -> None:
    """On the terminal."""
    table = Table(title=f"quality, compared with: {record.compared_with}", title_justify="left")
    table.add_column("")
    table.add_column(record.target.name or "target")
    other = record.reference_quality
    if other is not None:
        table.add_column((record.reference and record.reference.name) or "reference")
    found = record.agreement
    if found is not None:
        blank = [""] if other is not None else []
        table.add_row("greedy answers identical", f"{found.identical:.1%} of {found.answers}", *blank)
        table.add_row(f"{found.unit} before the first difference", f"{found.before_difference:.1%}", *blank)
        if found.mean_logprob_difference is not None:
            table.add_row("log-probability difference, mean", f"{found.mean_logprob_difference:.5f}", *blank)
            table.add_row("log-probability difference, largest", f"{found.largest_logprob_difference:.5f}", *blank)
    sides = [record.target_quality] + ([other] if other is not None else [])
    table.add_row("tool calls: made / JSON / fitting", *(_validity(side.tool_calls) for side in sides))
    table.add_row("JSON answers: JSON / keys", *(_json_answers(side.json_answers) for side in sides))
    table.add_row("perplexity", *(_perplexity(side.perplexity) for side in sides))
    console.print(table)
    for place in found.first_differences if found is not None else ():
        console.print(f"differs: {place}", style="dim", markup=False)


def _validity(found: Validity | None) -> str:
    return "–" if found is None else f"{found.called:.0%} / {found.json:.0%} / {found.fitting:.0%} of {found.asked}"


def _json_answers(found: Validity | None) -> str:
    return "–" if found is None else f"{found.json:.0%} / {found.fitting:.0%} of {found.asked}"


def _perplexity(found: Perplexity | None) -> str:
    if found is None:
        return "–"
    return f"{found.perplexity:.3f} ({found.tokens} tokens, {found.found:.0%} found, {found.method})"
