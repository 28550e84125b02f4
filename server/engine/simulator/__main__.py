"""``python -m sessile.server.engine.simulator TRACE``: latency by class over load, on the scheduler that serves."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from ....sessions.errors import SessileError
from ..engine_config import EngineConfig
from .plot import plot
from .report import LoadReport, World, simulate, table
from .step_cost import CPU, GPU, StepCost
from .workload import Mix, arrivals, read_trace

COSTS: dict[str, StepCost] = {"cpu": CPU, "gpu": GPU}


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        reports = _run(options)
    except SessileError as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"simulator: {error.filename}: {error.strerror}\n")
        return 2
    sys.stdout.write((msgspec.json.encode(reports).decode() if options.json else table(reports)) + "\n")
    return 0


def _run(options: argparse.Namespace) -> list[LoadReport]:
    requests = read_trace(options.trace, options.requests)
    config = EngineConfig(
        block_size=options.block_size,
        max_batch_tokens=options.max_batch_tokens,
        max_sequences=options.max_sequences,
        max_stall_ms=options.max_stall_ms,
    )
    config.validate()
    world = World(config, COSTS[options.cost], options.pool_tokens // options.block_size)
    mix = Mix(options.background, options.batch, options.tenants)
    reports: list[LoadReport] = []
    for speed in options.load:
        started = time.perf_counter()
        turns = arrivals(requests, speed, mix, options.pool_tokens // 2, options.seed)
        reports.append(simulate(world, turns, speed))
        sys.stderr.write(f"load {speed:g}: simulated in {time.perf_counter() - started:.0f} s\n")
    if options.plot is not None:
        title = f"{options.trace.name}, {reports[0].turns:,} turns a point, {options.cost} step times"
        plot(reports, options.plot, title)
    return reports


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sessile.server.engine.simulator", description=__doc__)
    parser.add_argument("trace", type=Path, help="a trace in Mooncake's format, one JSON object a line")
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 0.75, 1.0, 1.25], help="speeds of the trace")
    parser.add_argument("--requests", type=int, help="of the trace, at most")
    parser.add_argument("--cost", choices=sorted(COSTS), default="gpu", help="what steps take")
    parser.add_argument("--pool-tokens", type=int, default=1 << 20, help="tokens that the KV pool holds")
    parser.add_argument("--block-size", type=int, default=64, help="tokens of a block")
    parser.add_argument("--max-batch-tokens", type=int, default=2048, help="token budget of a step")
    parser.add_argument("--max-sequences", type=int, default=64, help="turns in one step, at most")
    parser.add_argument("--max-stall-ms", type=float, default=100.0, help="bound of a step beside running streams")
    parser.add_argument("--background", type=float, default=0.2, help="share of background turns")
    parser.add_argument("--batch", type=float, default=0.1, help="share of batch turns")
    parser.add_argument("--tenants", type=int, default=8, help="how many tenants send them")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of classes and tenants")
    parser.add_argument("--plot", type=Path, help="write a picture to this PNG file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
