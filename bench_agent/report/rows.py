"""The rows of a result's table: names and texts, the same for the terminal, the page and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..metrics.percentile import Estimate, Percentiles
from .record import RunRecord
from .wording import count, milliseconds, rate, seconds, share, size


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a name, a text for each record, and which of them is best (None: no better or worse)."""

    name: str
    cells: tuple[str, ...]
    best: int | None = None


def rows_of(records: Sequence[RunRecord]) -> list[Row]:
    """All rows that at least one record has something for."""
    rows = [_percentile_row(records, *spec) for spec in _PERCENTILES]
    rows += [_estimate_row(records, *spec) for spec in _RATES]
    rows.append(_goodput_row(records))
    rows += [Row(name, tuple(text(record) for record in records)) for name, text in _TEXTS]
    return [row for row in rows if any(cell != "–" for cell in row.cells)]


def _percentile_row(
    records: Sequence[RunRecord],
    name: str,
    found: Callable[[RunRecord], Percentiles | None],
    pick: Callable[[Percentiles], Estimate],
    text: Callable[[Estimate | None], str],
) -> Row:
    values = [None if (one := found(record)) is None else pick(one) for record in records]
    cells = tuple(text(value) for value in values)
    return Row(name, cells, _alone(cells, _best(values, smallest=True)))


def _estimate_row(
    records: Sequence[RunRecord], name: str, found: Callable[[RunRecord], Estimate | None], unit: str
) -> Row:
    values = [found(record) for record in records]
    cells = tuple(rate(value, unit) for value in values)
    return Row(name, cells, _alone(cells, _best(values, smallest=False)))


def _goodput_row(records: Sequence[RunRecord]) -> Row:
    """None is best where the bounds differ."""
    row = _estimate_row(records, "goodput", _goodput, "turns a second")
    bounds = {record.summary.goodput.slo for record in records if record.summary.goodput is not None}
    return row if len(bounds) == 1 else Row(row.name, row.cells)


def _alone(cells: Sequence[str], best: int | None) -> int | None:
    """Of cells that say the same none is best."""
    return None if best is None or cells.count(cells[best]) > 1 else best


def _best(values: Sequence[Estimate | None], *, smallest: bool) -> int | None:
    known = [(value.value if smallest else -value.value, index) for index, value in enumerate(values) if value]
    return min(known)[1] if len(known) > 1 else None


def _goodput(record: RunRecord) -> Estimate | None:
    return None if record.summary.goodput is None else record.summary.goodput.turns_per_s


def _goodput_share(record: RunRecord) -> str:
    goodput = record.summary.goodput
    return "–" if goodput is None else f"{share(goodput.share.value)} of turns ({goodput.slo})"


def _sources(record: RunRecord) -> str:
    sources = record.summary.tokens.by_source
    return ", ".join(f"{name} {tokens:,}" for name, tokens in sources.items() if tokens) or "–"


def _outcome(record: RunRecord) -> str:
    counts = record.summary.counts
    parts = [f"{counts.ok} ok"]
    named = (("failed", counts.failed), ("skipped", counts.skipped), ("interrupted", counts.interrupted))
    parts += [f"{number} {name}" for name, number in (*named, ("retries", counts.retries)) if number]
    if not record.complete:
        parts.append(f"PARTIAL: {record.ended}")
    return ", ".join(parts)


def _output(record: RunRecord) -> str:
    tokens = record.summary.tokens
    pieces = f" ({count(tokens.output_pieces)} are pieces: the server does not say)" if tokens.output_pieces else ""
    return count(tokens.output) + pieces


def _acceptance(record: RunRecord) -> str:
    tokens = record.summary.tokens
    return f"{share(tokens.accepted / tokens.drafted)} of {tokens.drafted:,} drafted" if tokens.drafted else "–"


def _process(record: RunRecord) -> str:
    used = record.server_process
    if used is None:
        return "–"
    return f"{size(used.peak_memory_bytes)} peak, {used.cpu_s:.1f} s of processor time"


def _client(record: RunRecord) -> str:
    client = record.client
    parts = [] if client.lag is None else [f"loop late p99 {client.lag.p99_s * 1000:.2f} ms"]
    if client.null_server_p99_s is not None:
        parts.append(f"null server p99 {client.null_server_p99_s * 1000:.2f} ms")
    return ", ".join(parts) or "–"


def _cost(record: RunRecord) -> str:
    cost = record.summary.cost
    if cost is None:
        return "–"
    parts = [] if cost.per_task is None else [f"{cost.per_task:.6g} a task"]
    if cost.per_million_output_tokens is not None:
        parts.append(f"{cost.per_million_output_tokens:.4g} a million output tokens")
    if cost.per_million_tokens is not None:
        parts.append(f"{cost.per_million_tokens:.4g} a million tokens")
    return f"{', '.join(parts)} (by {cost.by})"


def _start(record: RunRecord) -> str:
    start = record.provenance.server.start_s
    return "–" if start is None else f"{start:.1f} s"


def _other_load(record: RunRecord) -> str:
    load = record.provenance.machine_load
    others = "" if load.other_cpu_share is None else f", others used {share(load.other_cpu_share)} of it"
    return f"load average {load.load_average_before[0]:.1f} before{others}"


def _limit(record: RunRecord) -> str:
    limits, prompt = record.limits, record.summary.tokens.computed
    if limits is None:
        return "–"
    text = f"{limits.output_token_s * 1000:.2f} ms an output token"
    turns = record.summary.counts.ok
    return text + (
        f", {limits.prompt_token_s * prompt / turns * 1000:.0f} ms to compute a prompt" if prompt and turns else ""
    )


_PERCENTILES = tuple(
    (f"{name}, {rank}", found, pick, text)
    for name, found, text in (
        ("TTFT, first turns", lambda r: r.summary.ttft_first_s, milliseconds),
        ("TTFT, later turns", lambda r: r.summary.ttft_later_s, milliseconds),
        ("TPOT", lambda r: r.summary.tpot_s, milliseconds),
        ("ITL", lambda r: r.summary.itl_s, milliseconds),
        ("turn, end to end", lambda r: r.summary.e2e_s, milliseconds),
        ("task", lambda r: r.summary.task_s, seconds),
    )
    for rank, pick in (("p50", lambda p: p.p50), ("p90", lambda p: p.p90), ("p99", lambda p: p.p99))
)
_RATES = (
    ("tokens out", lambda r: r.summary.output_tokens_per_s, "tok/s"),
    ("tokens in", lambda r: r.summary.input_tokens_per_s, "tok/s"),
    ("turns", lambda r: r.summary.turns_per_s, "a second"),
)
_TEXTS: tuple[tuple[str, Callable[[RunRecord], str]], ...] = (
    ("within the bounds", _goodput_share),
    ("hit rate, the server says", lambda r: share(r.summary.hit_rates.server)),
    ("hit rate, reusable", lambda r: share(r.summary.hit_rates.reusable)),
    ("hit rate of later turns, at least, by time", lambda r: share(r.summary.hit_rates.by_time)),
    ("prompt tokens", lambda r: count(r.summary.tokens.prompt)),
    ("of these computed", lambda r: count(r.summary.tokens.computed)),
    ("of these reusable", lambda r: count(r.summary.tokens.reusable)),
    ("prompt tokens by source", _sources),
    ("output tokens", _output),
    ("drafts accepted", _acceptance),
    ("turns, in all repeats", _outcome),
    ("wall time of a repeat", lambda r: seconds(r.summary.wall_s)),
    ("limit of this machine", _limit),
    ("cost", _cost),
    ("server's start to ready", _start),
    ("server's process", _process),
    ("the harness adds", _client),
    ("machine", _other_load),
)
