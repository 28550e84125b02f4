"""How plots look: told apart by line, mark and hatch as much as by shade, to be read in black and white."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


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
_FACES = ("#3a3a3a", "#ffffff", "#c8c8c8", "#e8e8e8", "#8a8a8a", "#f4f4f4")


def style(number: int) -> Style:
    """The style of record number ``number``; after six they repeat."""
    return _STYLES[number % len(_STYLES)]


def face(number: int) -> str:
    """The fill of bars, which have a hatch and an edge too."""
    return _FACES[number % len(_FACES)]


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


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG; returns its path."""
    figure.savefig(path)
    return path
