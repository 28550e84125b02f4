"""The self-test as one report. The exit status says whether every result is right; speeds are told, not judged."""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from .results import Correctness, Speed, going_on, print_results

_Line = TypeVar("_Line", Correctness, Speed)
_DECODER_BYTES = 64 * 10**9  # weights, KV of 64 x 4096 tokens and of the engine's turns, and the steps themselves


def main(arguments: Sequence[str] = ()) -> int:
    """Run the self-test on the current GPU and print its table; 0 if every result is right, else 1."""
    parser = argparse.ArgumentParser(prog="sessile doctor --device cuda", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="results alone, no speeds")
    parser.add_argument("--sweep", action="store_true", help="also time other configurations of the slowest kernels")
    options = parser.parse_args(list(arguments))
    if not torch.cuda.is_available():
        sys.stderr.write(
            "no CUDA device: torch does not see one (is it a CUDA build of torch, and the driver there?)\n"
        )
        return 1
    return _run(quick=options.quick, sweep=options.sweep)


def _run(*, quick: bool, sweep: bool) -> int:
    from ....kernels.cuda_config import config_of
    from .correctness import check_ops

    started = time.monotonic()
    torch.manual_seed(time.time_ns())
    config = config_of(torch.device("cuda"))
    with torch.inference_mode():
        correctness = _collect(check_ops(config), started)
        speeds: list[Speed] = []
        if not quick:
            right, fast = _speeds_and_decoder(started)
            correctness += right
            speeds = fast
    properties = torch.cuda.get_device_properties(0)
    title = (
        f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, compute capability {properties.major}."
        f"{properties.minor}, torch {torch.__version__}; configuration sm_{config.architecture}, {config.arithmetic}; "
        f"{time.monotonic() - started:.0f} s"
    )
    print_results(title, correctness, speeds)
    if sweep:
        from .sweep import print_sweep

        with torch.inference_mode():
            print_sweep(config)
    return 0 if all(line.is_right for line in correctness) else 1


def _speeds_and_decoder(started: float) -> tuple[list[Correctness], list[Speed]]:
    from ....kernels.cuda_config import config_of
    from .decoder_speed import DecoderBench
    from .speed import measure_ops
    from .timing import Ceilings

    ceilings = Ceilings.measure()
    _say(
        started,
        f"ceilings: copy {ceilings.copy / 1e9:.0f} GB/s, pinned copy {ceilings.bus / 1e9:.1f} GB/s, bf16 products "
        f"{ceilings.matmul / 1e12:.0f} TFLOP/s",
    )
    speeds = _collect(measure_ops(config_of(torch.device("cuda")), ceilings), started)
    gc.collect()
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < _DECODER_BYTES:
        _say(started, f"decoder: left out, it needs {_DECODER_BYTES / 1e9:.0f} GB free")
        return [], speeds
    correctness: list[Correctness] = []

    def decode() -> Iterator[Speed]:
        bench = DecoderBench()
        _say(started, "decoder: graphs are captured")
        correctness.extend(_collect(bench.check(), started))
        yield from bench.measure(ceilings)
        yield from bench.measure_engine()

    broken = going_on(decode(), lambda error: Speed("decoder", error, math.nan, None, "", 1.0))
    speeds += _collect(broken, started)
    if not correctness:
        correctness = [Correctness("decoder", "did not run", math.nan, 0.0)]
    return correctness, speeds


def _collect(lines: Iterable[_Line], started: float) -> list[_Line]:
    """The lines, each said as it comes, so that a run that is cut short has shown what it found."""
    collected = []
    for line in lines:
        collected.append(line)
        _say(started, str(line))
    return collected


def _say(started: float, text: str) -> None:
    sys.stderr.write(f"[{time.monotonic() - started:5.0f} s] {text}\n")
    sys.stderr.flush()
