"""How plots look: told apart by line, mark and hatch as much as by shade, to be read in black and white."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

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
)
_FACES = ("#8c8c8c", "#ffffff", "#c8c8c8", "#ececec", "#aaaaaa", "#f6f6f6")


def style(number: int) -> Style:
    """The style of record number ``number``; after six they repeat."""
    return _STYLES[number % len(_STYLES)]


def face(number: int) -> str:
    """The fill of bars, which have a hatch and an edge too."""
    return _FACES[number % len(_FACES)]


def plot_labels(labels: Sequence[str], length: int = 40) -> list[str]:
    """Labels for a plot, told apart though each has at most about ``length`` letters: long ones lose their middle.

    What a label says is no formula to matplotlib, and one that begins with an underscore is not left out.
    """
    shown: list[str] = []
    for label in labels:
        text = " ".join(label.split())
        if len(text) > length:
            text = f"{text[: length // 2]}…{text[-(length - length // 2 - 1) :]}"
        number = 1 + sum(one == text or one.startswith(f"{text} (") for one in shown)
        shown.append(text if number == 1 else f"{text} ({number})")
    return [f" {text}".replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$") for text in shown]


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


def plain_ticks(axis: Axis) -> None:
    """Numbers instead of powers of ten, on an axis that is logarithmic."""
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG; returns its path. Raises BenchError."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return write_whole(path, drawn.getvalue())
