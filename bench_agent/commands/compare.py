"""``bench-agent compare``: results of one workload side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..report.comparison import check_comparable, distinct_labels, warnings_of
from ..report.files import made_folder
from ..report.page import write_page
from ..report.plots import plot_speed, plot_tokens, plot_ttft, plot_turns, read_turns
from ..report.record import RunRecord, read_record
from ..report.table import print_table
from ..report.terminal import terminal

CAPTIONS = {
    "ttft.png": "Times to the first token: how many of the turns were at least so fast.",
    "turns.png": "Time to the first token as the conversation grows.",
    "speed.png": "Output speed: of one session, and of all together. Bars: 95% intervals.",
    "tokens.png": "Where the prompts' tokens came from.",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    parser.add_argument("results", nargs="+", type=Path, help="result folders, or their record.json")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write report.html and the plots there")


def execute(given: argparse.Namespace) -> int:
    """Raises CompareError when the results are not of one workload and load."""
    folders = [path if path.is_dir() else path.parent for path in given.results]
    records = distinct_labels([read_record(path) for path in given.results])
    check_comparable(records)
    console = terminal()
    print_table(records, console)
    for line in warnings_of(records):
        console.print(f"mind: {line}", style="yellow", soft_wrap=True)
    if given.out is not None:
        console.print(f"report: {write_comparison(records, folders, given.out)}", soft_wrap=True)
    return 0


def write_comparison(records: Sequence[RunRecord], folders: Sequence[Path], out: Path) -> Path:
    """The page and its plots; returns the page."""
    made_folder(out)
    turns = [read_turns(folder) for folder in folders]
    plots = [
        plot_ttft(records, turns, out),
        plot_turns(records, turns, out),
        plot_speed(records, out),
        plot_tokens(records, out),
    ]
    pictures = [(CAPTIONS[file.name], file) for file in plots if file is not None]
    return write_page(records, pictures, warnings_of(records), out / "report.html")
