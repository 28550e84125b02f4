"""Tables on a terminal of any width: what does not fit is left out as a whole, never cut in its middle."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_ENDLESS = 1000  # columns of what is no terminal: a file or a pipe


def output_console() -> Console:
    """The standard output. What goes to a file or a pipe is as wide as it needs, unless COLUMNS says otherwise."""
    return Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _ENDLESS)


def fitted_table(console: Console, columns: Mapping[str, Sequence[str]], gives_way: Sequence[str]) -> Table:
    """A table of ``columns``, heading to cells.

    Where it is wider than ``console``, those of ``gives_way`` are left out, in that order, until it fits.
    """
    shown = dict(columns)
    for heading in gives_way:
        table = _table(shown)
        if Measurement.get(console, console.options.update(max_width=_ENDLESS), table).maximum <= console.width:
            return table
        shown.pop(heading, None)
    return _table(shown)


def _table(columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table()
    for heading in columns:
        table.add_column(heading, no_wrap=True, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table
