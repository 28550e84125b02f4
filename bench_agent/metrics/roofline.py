"""What this machine can do at most, and the floors that follow for a model: the limit that plots draw.

Run as a program it prints the machine's rates as one JSON line; it needs torch, which the harness itself does not load.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

_WIDTH, _HEIGHT, _RUNS = 576, 1536, 20


class MachineRates(msgspec.Struct, frozen=True, kw_only=True):
    """``gemm_flops``: the best rate of linear layers on many rows; ``stream_bytes``: the best rate at which memory is
    read; both a second."""

    gemm_flops: float
    stream_bytes: float
    threads: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Floors of one machine for one model, seconds.

    A prompt token costs two operations a parameter, an output token of one session reads all weights once (attention
    and everything else come on top, so nothing reaches these).
    """

    rates: MachineRates
    parameters: float
    weight_bytes: float
    prompt_token_s: float
    output_token_s: float


def limits(rates: MachineRates, *, parameters: float, weight_bytes: float) -> Limits:
    """The floors."""
    return Limits(
        rates=rates,
        parameters=parameters,
        weight_bytes=weight_bytes,
        prompt_token_s=2 * parameters / rates.gemm_flops,
        output_token_s=weight_bytes / rates.stream_bytes,
    )


def measure_rates() -> MachineRates | None:
    """Measured now, in a process of its own; None without torch."""
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    return msgspec.json.decode(done.stdout, type=MachineRates)


def _best(work: Callable[[], object]) -> float:
    work()
    best = float("inf")
    for _ in range(_RUNS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    """Measure and print."""
    import torch

    torch.set_grad_enabled(False)
    many = torch.randn(512, _WIDTH)
    flops = 2 * 512 * _HEIGHT * _WIDTH
    rates = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = [torch.randn(_HEIGHT, _WIDTH).to(dtype) for _ in range(12)]
        rows = many.to(dtype)
        rates.append(12 * flops / _best(lambda w=weights, r=rows: [torch.nn.functional.linear(r, one) for one in w]))  # type: ignore[misc]
    large = torch.ones(64 * 2**20)
    streams = [large.numel() * 4 / _best(large.sum)]
    found = {"gemm_flops": max(rates), "stream_bytes": max(streams), "threads": torch.get_num_threads()}
    print(json.dumps(found))  # noqa: T201 - its output is its answer


if __name__ == "__main__":
    main()
