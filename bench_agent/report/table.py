"""Results on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .record import RunRecord
from .rows import rows_of
from .terminal import terminal

_ANY_WIDTH = 10_000


def print_table(records: Sequence[RunRecord], console: Console | None = None) -> None:
    """One column a record; the best of a row is bold when there are several. Intervals of 95% in parentheses."""
    console = console or terminal()
    first = records[0]
    title = f"{first.workload.name}: {first.workload.sessions} sessions, {first.workload.turns} turns"
    table = Table(title=title, caption="in parentheses: 95% intervals", title_justify="left")
    table.add_column("")
    for record in records:
        server = record.provenance.server
        table.add_column(f"{record.label}\n{server.name or 'unknown server'} {server.version or ''} ({server.wire})")
    for row in rows_of(records):
        cells = [Text(cell, style="bold" if row.best == index else "") for index, cell in enumerate(row.cells)]
        table.add_row(row.name, *cells)
    if not console.is_terminal:  # nobody's window: as wide as it needs to be
        narrow, console.width = console.width, _ANY_WIDTH
        console.width = max(narrow, console.measure(table).maximum)
    console.print(table)
    for record in records:
        for note in record.workload.notes:
            console.print(f"note ({record.label}): {note}", style="dim", soft_wrap=True)
        for text, number in record.summary.errors.items():
            console.print(f"error ({record.label}), {number} times: {text}", style="red", soft_wrap=True)


def markdown_table(records: Sequence[RunRecord]) -> str:
    """The same as Markdown."""
    head = "| |" + "".join(f" {cell_text(record.label)} |" for record in records)
    lines = [head, "|---|" + "---|" * len(records)]
    for row in rows_of(records):
        cells = [f"**{cell}**" if row.best == index else cell for index, cell in enumerate(row.cells)]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell_text(text: str) -> str:
    """A text for a cell of Markdown: a bar or the end of a line would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")
