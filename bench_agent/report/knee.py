"""A sweep's plot: what more load brings and what it costs, with the knee marked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from ..metrics.percentile import Estimate
from .record import RunRecord
from .style import new_figure, plain_ticks, save


def knee_of(xs: Sequence[float], ys: Sequence[float]) -> int | None:
    """The place after which more of ``xs`` brings little more of ``ys``: where the curve, drawn in a unit square, is
    farthest above its diagonal (Satopää et al., "Finding a Kneedle in a Haystack", 2011, without smoothing).

    None for fewer than three points, or a curve that does not rise.
    """
    if len(xs) < 3 or max(ys) <= ys[0]:
        return None
    width, low, height = xs[-1] - xs[0], ys[0], max(ys) - ys[0]
    above = [(y - low) / height - (x - xs[0]) / width for x, y in zip(xs, ys, strict=True)]
    best = max(range(len(xs)), key=lambda place: above[place])
    return best if above[best] > 0 else None


def throughput(record: RunRecord) -> Estimate:
    """What the knee is found in: goodput where bounds were given, else output tokens a second."""
    goodput = record.summary.goodput
    return record.summary.output_tokens_per_s if goodput is None else goodput.output_tokens_per_s


def plot_knee(name: str, points: Sequence[str], records: Sequence[RunRecord], folder: Path) -> tuple[Path, int | None]:
    """``points``: the values of what was swept. Returns the file and the place of the knee."""
    xs = _places(points)
    knee = knee_of(xs, [throughput(record).value for record in records])
    figure, (rate, latency, hits) = new_figure(7.5, 8.0, rows=3)
    bounded = records[0].summary.goodput is not None
    _line(rate, xs, [throughput(record) for record in records], 1, "o", "-", "within the bounds" if bounded else "all")
    if bounded:
        _line(rate, xs, [r.summary.output_tokens_per_s for r in records], 1, "s", ":", "without the bounds")
    rate.set_ylabel("output tokens a second")
    rate.margins(y=0.1)
    rate.set_ylim(bottom=0)
    for mark, line, label, pick in (("o", "-", "p50", "p50"), ("^", "--", "p99", "p99")):
        found = [getattr(r.summary.ttft_later_s, pick) if r.summary.ttft_later_s else None for r in records]
        _line(latency, xs, found, 1000, mark, line, f"TTFT of later turns, {label}")
    tpot = [r.summary.tpot_s.p50 if r.summary.tpot_s else None for r in records]
    _line(latency, xs, tpot, 1000, "s", ":", "time an output token, p50")
    latency.set_yscale("log")
    plain_ticks(latency.yaxis, 7)
    latency.set_ylabel("ms")
    latency.legend(fontsize=8)
    for mark, line, label in (("o", "-", "server"), ("s", ":", "reusable")):
        shares = [getattr(record.summary.hit_rates, label) for record in records]
        known = [(x, value * 100) for x, value in zip(xs, shares, strict=True) if value is not None]
        if known:
            filled = label == "server"
            hits.plot(
                *zip(*known, strict=True), marker=mark, markersize=4 if filled else 9, linestyle=line, color="black",
                fillstyle="full" if filled else "none", label=_HITS[label],
            )  # fmt: skip
    hits.set_ylabel("prompt tokens, %")
    hits.set_ylim(0, 105)
    hits.set_xlabel(name)
    if hits.lines:
        hits.legend(fontsize=8, loc="lower left")
    for panel in (rate, latency, hits):
        if _is_geometric(xs):
            panel.set_xscale("log")
        panel.set_xticks(xs, points)
        panel.set_xticks([], minor=True)
        if knee is not None:
            panel.axvline(xs[knee], color="#707070", linestyle=(0, (4, 3)), linewidth=1.2)
    if knee is not None:
        rate.annotate(
            f"knee: {points[knee]}", (xs[knee], 0.04), xycoords=("data", "axes fraction"), fontsize=9, xytext=(5, 0),
            textcoords="offset points",
        )  # fmt: skip
    rate.legend(fontsize=8, loc="lower right")
    return save(figure, folder / "knee.png"), knee


_HITS = {"server": "reused, as the server says", "reusable": "reusable"}


def _places(points: Sequence[str]) -> list[float]:
    """The numbers, when all are and they rise; else places in a row."""
    try:
        numbers = [float(point) for point in points]
    except ValueError:
        return [float(place) for place in range(len(points))]
    rising = all(a < b for a, b in itertools.pairwise(numbers))
    return numbers if rising else [float(place) for place in range(len(points))]


def _is_geometric(xs: Sequence[float]) -> bool:
    """Whether the numbers rise by factors rather than by steps: on an even axis the first ones would lie together."""
    return len(xs) > 2 and xs[0] > 0 and xs[-1] / xs[0] >= 8


def _line(
    panel: Axes, xs: Sequence[float], found: Sequence[Estimate | None], factor: float, mark: str, line: str, label: str
) -> None:
    known = [(x, one) for x, one in zip(xs, found, strict=True) if one is not None]
    if not known:
        return
    values = [one.value * factor for _, one in known]
    low = [0.0 if one.low is None else (one.value - max(one.low, 0.0)) * factor for _, one in known]
    high = [0.0 if one.high is None else (one.high - one.value) * factor for _, one in known]
    panel.errorbar(
        [x for x, _ in known], values, yerr=[[max(0.0, v) for v in low], [max(0.0, v) for v in high]], color="black",
        marker=mark, linestyle=line, linewidth=1.3, markersize=5, capsize=3, elinewidth=0.8, label=label,
    )  # fmt: skip
