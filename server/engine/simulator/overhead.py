"""What the scheduler itself costs: ``python -m sessile.server.engine.simulator.overhead``.

64 turns of 8,000 tokens decode, 1,000 others wait; the seconds of the scheduler's own code are measured a step, as CPU
time of its thread, with and without drafts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from ..engine_config import EngineConfig
from ..messages import SubmitTurn
from ..sampling_params import SamplingParams
from .engine import SimulatedEngine
from .step_cost import GPU

BLOCK_SIZE = 16


def loaded_engine(running: int, waiting: int, tokens: int) -> SimulatedEngine:
    """An engine in which ``running`` turns of ``tokens`` decode and ``waiting`` others of as many wait."""
    config = EngineConfig(block_size=BLOCK_SIZE, max_sequences=running, max_batch_tokens=8192, max_stall_ms=0)
    engine = SimulatedEngine(config, GPU, num_blocks=(running + 1) * (tokens // BLOCK_SIZE + 128))
    for index in range(running + waiting):
        sampling = SamplingParams(max_tokens=1500 if index < running else 8, seed=0)
        start = index * tokens
        engine.submit(
            SubmitTurn(
                turn_id=str(index),
                token_ids=list(range(start, start + tokens)),
                sampling=sampling,
                tenant=f"tenant-{index % 50}",
            )
        )
    while any(not each.is_decoding for each in engine.scheduler.running) or len(engine.scheduler.running) < running:
        engine.step()
    return engine


def measure(step: Callable[[], object], steps: int) -> list[float]:
    """Milliseconds of CPU time of each step."""
    taken: list[float] = []
    for _ in range(steps):
        started = time.thread_time()
        step()
        taken.append(1000 * (time.thread_time() - started))
    return taken


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sessile.server.engine.simulator.overhead", description=__doc__)
    parser.add_argument("--running", type=int, default=64)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(arguments)
    engine = loaded_engine(options.running, options.waiting, options.tokens)
    taken = measure(engine.step, options.steps)
    assert len(engine.scheduler.running) == options.running
    tenths = statistics.quantiles(taken, n=10)
    sys.stdout.write(
        f"{options.running} running of {options.tokens} tokens, {engine.scheduler.num_waiting} waiting: "
        f"{statistics.median(taken):.2f} ms a step (p10 {tenths[0]:.2f}, p90 {tenths[-1]:.2f}, max {max(taken):.2f})\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
