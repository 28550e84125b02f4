"""A server that does nothing but keep time: what the harness measures of it is the harness.

Run as a program it prints its port and serves until its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from .null_http import NullHttpServer
from .null_pace import Pace
from .null_sessions import NullSessionServer


async def _main(wire: str, pace: Pace) -> None:
    server = NullSessionServer(pace) if wire == "grpc" else NullHttpServer(pace)
    print(await server.start(), flush=True)  # noqa: T201 - its parent reads it
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="the harness's null server")
    parser.add_argument("--wire", choices=("http", "grpc"), default="http")
    parser.add_argument("--ttft", type=float, default=0.05)
    parser.add_argument("--tpot", type=float, default=0.02)
    given = parser.parse_args()
    asyncio.run(_main(given.wire, Pace(given.ttft, given.tpot)))
