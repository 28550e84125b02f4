"""What ``make demo`` reads is there: the demo itself runs outside of the tests."""

from __future__ import annotations

import io

from rich.console import Console

from sessile.bench_agent.demo import FILES_READ, REPOSITORY, Demo, DemoServer, TurnRow
from sessile.server.client import TurnUsage
from sessile.server.engine.messages import TokensBySource


def test_the_files_that_the_agent_reads_have_the_lines_that_it_asks_for() -> None:
    for path, start, stop in FILES_READ:
        lines = (REPOSITORY / path).read_text().splitlines()
        assert 0 < start < stop <= len(lines), path


def test_the_table_shows_every_figure_on_80_columns(tmp_path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    demo = Demo(console, DemoServer(tmp_path))
    sources = TokensBySource(device=1234, computed=56)
    usage = TurnUsage(prompt_tokens=1290, completion_tokens=48, tokens_by_source=sources)
    demo.rows.append(TurnRow("2 tool result: block_pool.py", usage, 0.123, 0.7, "The files have tests."))
    console.print(demo._table())
    shown = console.export_text()
    for figure in ("2 tool result", "1290", "1234 (96%)", "56", "123", "67"):
        assert figure in shown
