"""Draws latency by class over load. Lines differ by dash and mark, so the picture reads without colour."""

from __future__ import annotations

from pathlib import Path

from ....sessions.errors import ConfigError
from .report import LoadReport

STYLES = {"interactive": ("-", "o"), "background": ("--", "s"), "batch": (":", "^")}


def plot(reports: list[LoadReport], path: Path, title: str) -> None:
    """Write a PNG.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            "matplotlib is not installed", field="--plot", remedy="pip install 'sessile[bench]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), dpi=110)
    names = [each.priority for each in reports[0].classes]
    for name in names:
        dash, mark = STYLES[name]
        rows = [(r.speed, c) for r in reports for c in r.classes if c.priority == name]
        speeds = [speed for speed, _ in rows]
        median = [c.first_token_p50_s for _, c in rows]
        axes.plot(speeds, median, dash, marker=mark, color="black", label=f"{name}, p50")
        axes.plot(
            speeds,
            [c.first_token_p99_s for _, c in rows],
            dash,
            marker=mark,
            color="0.55",
            markerfacecolor="white",
            label=f"{name}, p99",
        )
    axes.set_yscale("log")
    axes.set_xlabel("load: speed of the trace, 1 = as recorded")
    axes.set_ylabel("time to the first token, s")
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, which="major", color="0.88")
    axes.legend(fontsize=8, ncols=len(names))
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
