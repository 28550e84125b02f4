"""Results on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .record import RunRecord
from .rows import rows_of


def print_table(records: Sequence[RunRecord], console: Console | None = None) -> None:
    """One column a record; the best of a row is bold when there are several. Intervals of 95% in parentheses."""
    console = console or Console()
    first = records[0]
    title = f"{first.workload.name}: {first.workload.sessions} sessions, {first.workload.turns} turns"
    table = Table(title=title, caption="in parentheses: 95% intervals", title_justify="left")
    table.add_column("")
    for record in records:
        server = record.provenance.server
        table.add_column(f"{record.label}\n{server.name or 'unknown server'} {server.version or ''} ({server.wire})")
    for row in rows_of(records):
        cells = [f"[bold]{cell}[/bold]" if row.best == index else cell for index, cell in enumerate(row.cells)]
        table.add_row(row.name, *cells)
    console.print(table)
    for record in records:
        for note in record.workload.notes:
            console.print(f"note ({record.label}): {note}", style="dim")
        for text, number in record.summary.errors.items():
            console.print(f"error ({record.label}), {number} times: {text}", style="red", markup=False)


def markdown_table(records: Sequence[RunRecord]) -> str:
    """The same as Markdown."""
    head = "| |" + "".join(f" {record.label} |" for record in records)
    lines = [head, "|---|" + "---|" * len(records)]
    for row in rows_of(records):
        cells = [f"**{cell}**" if row.best == index else cell for index, cell in enumerate(row.cells)]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
