"""``bench-agent overhead``: what the harness itself adds, against a server of known times."""

from __future__ import annotations

import argparse
import asyncio

from ..load.overhead import TPOT_S, TTFT_S, measure_overhead
from ..report.terminal import terminal
from ..report.wording import WIRES
from .flag_types import positive, whole


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    parser.add_argument("--wire", choices=tuple(WIRES), default="http", help="the protocol (http)")
    parser.add_argument("--sessions", type=whole(1), default=64, metavar="N", help="sessions at a time")
    parser.add_argument("--seconds", type=positive, default=10.0, metavar="S", help="how long it measures (10)")


def execute(given: argparse.Namespace) -> int:
    """Raises BenchError."""
    found = asyncio.run(measure_overhead(given.sessions, given.seconds, wire=given.wire))
    terminal().print(
        f"{found.sessions} sessions of a null server by {WIRES[found.wire]} "
        f"({TTFT_S * 1000:.0f} ms to the first piece, {TPOT_S * 1000:.0f} ms between pieces): "
        f"{found.turns} turns, {found.pieces_per_s:,.0f} pieces a second\n"
        f"late by, first pieces: p50 {found.ttft_p50_s * 1000:.2f} ms, p99 {found.ttft_p99_s * 1000:.2f} ms "
        f"(request's way included)\n"
        f"late by, all pieces:   p50 {found.piece_p50_s * 1000:.2f} ms, p99 {found.piece_p99_s * 1000:.2f} ms",
        soft_wrap=True,
    )
    return 0
