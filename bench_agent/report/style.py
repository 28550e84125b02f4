"""How plots look: told apart by line, mark and hatch as much as by shade, to be read in black and white."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from .files import write_whole


@dataclass(frozen=True, slots=True)
class Style:
    """Of one record, in all plots."""

    shade: str
    line: str
    mark: str
    hatch: str


_STYLES = (
    Style("#000000", "-", "o", ""),
    Style("#707070", "--", "s", "////"),
    Style("#404040", "-.", "^", "...."),
    Style("#a0a0a0", ":", "D", "xxxx"),
    Style("#202020", (0, (5, 1, 1, 1, 1, 1)), "v", "\\\\\\\\"),  # type: ignore[arg-type]
    Style("#888888", (0, (1, 1)), "P", "++++"),  # type: ignore[arg-type]
    Style("#000000", (0, (8, 2)), "X", "oo"),  # type: ignore[arg-type]
    Style("#606060", (0, (3, 1, 1, 1)), "<", "----"),  # type: ignore[arg-type]
    Style("#303030", (0, (1, 3)), "*", "||||"),  # type: ignore[arg-type]
    Style("#909090", (0, (6, 1)), ">", "**"),  # type: ignore[arg-type]
)
_FACES = ("#8c8c8c", "#ffffff", "#c8c8c8", "#ececec", "#aaaaaa", "#f6f6f6", "#ffffff", "#d8d8d8", "#ffffff", "#e4e4e4")
_LETTERS_AN_INCH, _LETTERS_A_MARK = 15, 9  # in the legend's type


def style(number: int) -> Style:
    """The style of record number ``number``; after ten they repeat."""
    return _STYLES[number % len(_STYLES)]


def face(number: int) -> str:
    """The fill of bars, which have a hatch and an edge too."""
    return _FACES[number % len(_FACES)]


def plot_labels(labels: Sequence[str], length: int = 40) -> list[str]:
    """Labels for a plot, each of at most about ``length`` letters, and told apart all the same: of long ones the middle
    is left out, or what they begin with alike.

    What a label says is no formula to matplotlib, and one that begins with an underscore is not left out.
    """
    whole = [" ".join(label.split()) for label in labels]
    shown = [_without_middle(text, length) for text in whole]
    if len(set(shown)) < len(set(whole)):
        pairs = zip(min(whole), max(whole), strict=False)
        common = next(n for n, (a, b) in enumerate(itertools.chain(pairs, (("", "."),))) if a != b)
        shown = [_without_middle(f"…{text[max(0, common - 8) :]}", length) for text in whole]
    numbered = [text if shown.count(text) == 1 else f"{n + 1}: {text}" for n, text in enumerate(shown)]
    return [(f" {text}" if text.startswith("_") else text).replace("$", r"\$") for text in numbered]


def _without_middle(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]}…{text[-(length - length // 2 - 1) :]}"


def new_figure(width: float = 8.0, height: float = 4.5, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with its axes, row by row."""
    mpl.rcParams["hatch.linewidth"] = 0.6
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    flat: list[Axes] = list(axes.flat)
    for one in flat:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(visible=True, linewidth=0.4, color="#cccccc")
        one.set_axisbelow(True)
    return figure, flat


def plain_ticks(axis: Axis, most: int) -> None:
    """Numbers instead of powers of ten on an axis that is logarithmic and whose limits are set: ``most`` of them."""
    low, high = axis.get_view_interval()
    for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        places = [place for place in LogLocator(base=10, subs=steps).tick_values(low, high) if low <= place <= high]
        if len(places) <= most:
            break
    if len(places) < 3:
        places = [place for place in MaxNLocator(nbins=most - 1).tick_values(low, high) if max(low, 0) < place <= high]
    thinned = places[:: -(-len(places) // most)]
    axis.set_major_locator(FixedLocator(thinned))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, below them, in as many columns as there is room for."""
    found = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if not found:
        return
    letters = figure.get_figwidth() * _LETTERS_AN_INCH
    columns = int(letters // (max(map(len, found)) + _LETTERS_A_MARK))
    figure.legend(found.values(), found, fontsize=8, loc="outside lower center", ncols=max(1, min(4, columns)))


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG; returns its path. Raises BenchError."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return write_whole(path, drawn.getvalue())
