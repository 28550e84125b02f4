"""Results side by side: only of the same workload under the same load."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from ..errors import CompareError
from .record import RunRecord


def check_comparable(records: Sequence[RunRecord]) -> None:
    """Raises CompareError naming what differs, or what a record lacks."""
    if not records:
        raise CompareError("nothing to compare")
    for record in records:
        missing = record.missing()
        if missing:
            raise CompareError(f"{record.label!r} cannot be compared: it lacks {', '.join(missing)}")
    first = records[0]
    for other in records[1:]:
        if other.workload.sha256 != first.workload.sha256:
            raise CompareError(
                f"{other.label!r} is of another workload than {first.label!r}: "
                f"{_workload(other)} and {_workload(first)}",
                remedy="run both with the same --workload, its flags and --seed",
            )
        different = _different(first.load, other.load)
        if different:
            raise CompareError(
                f"{other.label!r} is of another load than {first.label!r}: {different}",
                remedy="run both with the same load flags (a sweep compares different loads)",
            )


def distinct_labels(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records with labels that differ."""
    used: set[str] = set()
    renamed: list[RunRecord] = []
    for record in records:
        numbered = (f"{record.label} ({number})" for number in itertools.count(2))
        label = next(label for label in itertools.chain((record.label,), numbered) if label not in used)
        used.add(label)
        renamed.append(msgspec.structs.replace(record, label=label))
    return renamed


def warnings_of(records: Sequence[RunRecord]) -> list[str]:
    """What a reader of a comparison has to know."""
    found: list[str] = []
    for record in records:
        load = record.provenance.machine_load
        if not record.complete:
            found.append(f"{record.label} is partial: {record.ended}")
        rates = record.summary.hit_rates
        if rates.server is not None and rates.reusable is not None and rates.server > rates.reusable + 0.03:
            found.append(
                f"{record.label}: the server says {rates.server:.1%} of the prompts were reused, while the run's own "
                f"prompts share {rates.reusable:.1%}: its cache was not empty before"
            )
        if record.summary.counts.failed:
            found.append(f"{record.label}: {record.summary.counts.failed} turns failed")
        if load.other_cpu_share is not None and load.other_cpu_share > 0.1:
            found.append(f"{record.label}: other programs used {load.other_cpu_share:.0%} of the machine meanwhile")
    if len({record.provenance.hardware.cpu for record in records}) > 1:
        found.append("the results are from different machines")
    outputs = {record.summary.tokens.output for record in records}
    if len(outputs) > 1 and max(outputs) > 1.02 * max(min(outputs), 1):
        found.append(f"the servers gave answers of different length: from {min(outputs):,} to {max(outputs):,} tokens")
    if len({record.summary.tokens.output_pieces > 0 for record in records}) > 1:
        found.append("some servers say how many tokens they sent, of others the pieces are counted")
    for first, other in itertools.combinations(records, 2):
        if first.provenance == other.provenance and first.summary == other.summary:
            found.append(f"{first.label} and {other.label} are the same result")
    bounds = {str(record.summary.goodput.slo) for record in records if record.summary.goodput is not None}
    if len(bounds) > 1:
        found.append(f"goodput is within different bounds: {'; '.join(sorted(bounds))}")
    models = {(record.provenance.server.model, record.provenance.server.quantisation) for record in records}
    if len(models) > 1:
        names = ", ".join(f"{model} in {quantisation}" for model, quantisation in sorted(models, key=str))
        found.append(f"models or quantisations differ: {names}")
    return found


def _workload(record: RunRecord) -> str:
    return f"{record.workload.name} ({record.workload.sha256[:12]})"


def _different(first: msgspec.Struct, other: msgspec.Struct) -> str:
    ours, theirs = msgspec.structs.asdict(first), msgspec.structs.asdict(other)
    return ", ".join(f"{name} {theirs[name]} and {ours[name]}" for name in ours if ours[name] != theirs[name])
