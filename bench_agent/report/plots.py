"""The plots of a comparison, one function each. Each returns the file it wrote, or None when it has nothing to show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..metrics.percentile import Estimate
from ..metrics.records import TurnRecord, TurnStatus
from .record import TURNS_FILE, RunRecord
from .style import face, legend_below, new_figure, plain_ticks, plot_labels, save, style

SOURCES = {
    "computed": ("#707070", ""),
    "in_flight": ("#ffffff", "////"),
    "device": ("#d8d8d8", "...."),
    "host": ("#ffffff", "xxxx"),
    "disk": ("#b4b4b4", "----"),
    "shared": ("#ffffff", "++++"),
    "cached": ("#eeeeee", "\\\\"),
}


def read_turns(folder: Path) -> list[TurnRecord]:
    """The good turns of a result folder; none when it has no file of turns. A cut last line is passed over."""
    path = folder / TURNS_FILE
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(TurnRecord)
    turns: list[TurnRecord] = []
    for line in path.read_bytes().splitlines():
        try:
            turns.append(decoder.decode(line))
        except msgspec.DecodeError:
            break
    return [turn for turn in turns if turn.status is TurnStatus.OK]


def plot_ttft(records: Sequence[RunRecord], turns: Sequence[Sequence[TurnRecord]], folder: Path) -> Path | None:
    """How the times to the first token are spread, first and later turns apart."""
    figure, axes = new_figure(9.0, 4.2, columns=2)
    labels = plot_labels([record.label for record in records])
    drawn = False
    for panel, first in zip(axes, (False, True), strict=True):
        for number, (label, own) in enumerate(zip(labels, turns, strict=True)):
            values = sorted(t.ttft_s * 1000 for t in own if t.ttft_s is not None and t.first is first)
            if not values:
                continue
            drawn = True
            heights = np.arange(1, len(values) + 1) / len(values)
            look = style(number)
            panel.step(
                [values[0], *values], [0.0, *heights], where="post", color=look.shade, linestyle=look.line,
                linewidth=1.6, label=label, marker=look.mark, markevery=max(1, len(values) // 6), markersize=5,
            )  # fmt: skip
        if not first:
            _limit_line(panel, records)
        panel.set_xscale("log")
        panel.set_xlabel("time to the first token, ms")
        panel.set_ylabel("share of turns at or below")
        panel.set_title("first turns" if first else "later turns", fontsize=10)
        panel.set_ylim(0, 1.02)
        panel.margins(x=0.06)
        plain_ticks(panel.xaxis, 7)
    if not drawn:
        return None
    legend_below(figure, axes)
    return save(figure, folder / "ttft.png")


def plot_speed(records: Sequence[RunRecord], folder: Path) -> Path | None:
    """Seconds an output token, and output tokens a second, with their intervals and this machine's limit."""
    figure, (tpot, throughput) = new_figure(9.0, 4.2, columns=2)
    width = 0.8 / len(records)
    labels = plot_labels([record.label for record in records])
    for number, record in enumerate(records):
        found = record.summary.tpot_s
        if found is not None:
            places = np.arange(3, dtype=np.float64) + (number - (len(records) - 1) / 2) * width
            _bars(tpot, places, [found.p50, found.p90, found.p99], 1000, width, number, labels[number])
        _bars(
            throughput, np.array([float(number)]), [record.summary.output_tokens_per_s], 1, 0.7, number, labels[number]
        )
    limited = next((record.limits for record in records if record.limits is not None), None)
    if limited is not None:
        limit = limited.output_token_s * 1000
        label = f"limit of the machine, one session: {limit:.1f} ms"
        tpot.axhline(limit, color="black", linestyle=(0, (1, 2)), linewidth=1.2, label=label)
    tpot.set_xticks(range(3), ["p50", "p90", "p99"])
    tpot.set_ylabel("time an output token, ms")
    tpot.set_xlim(-0.6, 2.6)
    tpot.margins(y=0.12)
    tpot.set_ylim(bottom=0)
    legend_below(figure, (tpot, throughput))
    names = plot_labels([record.label for record in records], 22)
    throughput.set_xticks(range(len(records)), names, fontsize=8)
    if len(records) > 3:
        for name in throughput.get_xticklabels():
            name.set(rotation=30, ha="right", rotation_mode="anchor")
    throughput.set_ylabel("output tokens a second,\nall sessions")
    throughput.set_xlim(-0.6, len(records) - 0.4)
    throughput.margins(y=0.12)
    throughput.set_ylim(bottom=0)
    return save(figure, folder / "speed.png")


def plot_turns(records: Sequence[RunRecord], turns: Sequence[Sequence[TurnRecord]], folder: Path) -> Path | None:
    """The median time to the first token by the turn's number: flat where history is reused."""
    figure, (panel,) = new_figure(8.0, 4.0)
    drawn = False
    labels = plot_labels([record.label for record in records])
    for number, (label, own) in enumerate(zip(labels, turns, strict=True)):
        by_turn: dict[int, list[float]] = {}
        for turn in own:
            if turn.ttft_s is not None:
                by_turn.setdefault(turn.turn, []).append(turn.ttft_s * 1000)
        if not by_turn:
            continue
        drawn = True
        places = sorted(by_turn)
        middle = [float(np.median(by_turn[place])) for place in places]
        low = [float(np.percentile(by_turn[place], 10)) for place in places]
        high = [float(np.percentile(by_turn[place], 90)) for place in places]
        look = style(number)
        shifted = [place + 1 + 0.06 * (number - (len(records) - 1) / 2) for place in places]
        spread = [np.subtract(middle, low), np.subtract(high, middle)]
        panel.errorbar(
            shifted, middle, yerr=spread, color=look.shade, linestyle=look.line, marker=look.mark, markersize=5,
            linewidth=1.4, elinewidth=0.8, capsize=2, label=label,
        )  # fmt: skip
    panel.set_yscale("log")
    plain_ticks(panel.yaxis, 12)
    panel.margins(x=0.04)
    panel.set_xlim(left=min(0.5, panel.get_xlim()[0]), right=max(1.5, panel.get_xlim()[1]))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.set_xlabel("number of the turn in its session")
    panel.set_ylabel("time to the first token, ms\n(median; bars: 10th to 90th percentile)")
    if not drawn:
        return None
    legend_below(figure, (panel,))
    return save(figure, folder / "turns.png")


def plot_tokens(records: Sequence[RunRecord], folder: Path) -> Path | None:
    """Where the prompts' tokens came from, with what could have been reused."""
    known = [record for record in records if record.summary.tokens.prompt]
    if not known:
        return None
    figure, (panel,) = new_figure(8.0, 1.6 + 0.8 * len(known))
    seen: set[str] = set()
    for row, record in enumerate(known):
        left = 0.0
        for source, count in _parts(record).items():
            shade, hatch = SOURCES.get(source, ("white", "oo"))
            panel.barh(
                row, count, left=left, height=0.55, color=shade, hatch=hatch, edgecolor="black",
                linewidth=0.8, label=None if source in seen else _SOURCE_WORDS.get(source, source),
            )  # fmt: skip
            seen.add(source)
            left += count
        reusable, prompt = record.summary.tokens.reusable, record.summary.tokens.prompt
        if reusable is not None and prompt is not None:
            panel.plot(
                [prompt - reusable] * 2, [row - 0.4, row + 0.4], color="black", linewidth=2.2, linestyle=(0, (2, 1)),
                label="had to be computed, at least" if row == 0 else None,
            )  # fmt: skip
    panel.set_yticks(range(len(known)), plot_labels([record.label for record in known], 22))
    panel.invert_yaxis()
    panel.set_xlabel("prompt tokens of all turns")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(figure, (panel,))
    return save(figure, folder / "tokens.png")


_SOURCE_WORDS = {
    "computed": "computed",
    "in_flight": "computed for another turn",
    "device": "device",
    "host": "host memory",
    "disk": "disk",
    "shared": "shared tier",
    "cached": "cached, as the server says",
}


def _parts(record: RunRecord) -> dict[str, int]:
    tokens = record.summary.tokens
    if tokens.by_source:
        return {
            source: tokens.by_source[source] for source in (*SOURCES, *tokens.by_source) if source in tokens.by_source
        }
    if tokens.cached is None or tokens.computed is None:
        return {"computed": tokens.prompt or 0}
    return {"computed": tokens.computed, "cached": tokens.cached}


_WIDE = 0.16  # bars narrower than this have their numbers upright


def _bars(
    panel: Axes,
    places: npt.NDArray[np.float64],
    found: Sequence[Estimate],
    factor: float,
    width: float,
    number: int,
    label: str,
) -> None:
    values = [one.value * factor for one in found]
    low = [0.0 if one.low is None else max(0.0, one.value - max(one.low, 0.0)) * factor for one in found]
    high = [0.0 if one.high is None else max(0.0, one.high - one.value) * factor for one in found]
    panel.bar(
        places, values, width, yerr=[low, high], color=face(number), hatch=style(number).hatch, edgecolor="black",
        linewidth=0.8, error_kw={"elinewidth": 1, "capsize": 3}, label=label,
    )  # fmt: skip
    for place, value, reach in zip(places, values, high, strict=True):
        panel.annotate(
            f"{value:,.1f}" if value < 100 else f"{value:,.0f}", (float(place), value + reach), ha="center",
            va="bottom", fontsize=7, rotation=90 if width < _WIDE else 0, xytext=(0, 3), textcoords="offset points",
        )  # fmt: skip


def _limit_line(panel: Axes, records: Sequence[RunRecord]) -> None:
    """The floor of a turn: what the record that computed least had to compute, at the machine's best rate."""
    floors = [
        record.limits.prompt_token_s * record.summary.tokens.computed / record.summary.counts.ok * 1000
        for record in records
        if record.limits is not None and record.summary.tokens.computed is not None and record.summary.counts.ok
    ]
    if floors:
        label = f"limit of the machine: {min(floors):,.0f} ms"
        panel.axvline(min(floors), color="black", linestyle=(0, (1, 2)), linewidth=1.2, label=label)
