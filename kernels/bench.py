"""Measures the CPU kernels against what this machine can do at most, in the same run: ``make bench-kernels``.

The limits are those of torch's prepacked bf16 linear layers (``gemm_gflops`` at 512 rows, ``stream_gbs`` at one row)
and of a memory copy (``copy_gbs``, read and write counted). Each line is the best of several runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from .attention_batch import AttentionBatch
from .backend import prepare
from .bench_shapes import (
    HEADS,
    HIDDEN,
    INNER,
    LAYER_SHAPES,
    LAYERS,
    VOCABULARY,
    Load,
    random_decoder,
    random_packed,
    random_pool,
)
from .decoder import DecoderWeights, decoder
from .linear import PackedLinear, WeightForm, linear
from .paged_attention import paged_attention

LINEAR_PARAMETERS = LAYERS * sum(rows * columns for rows, columns in LAYER_SHAPES)


@dataclass(frozen=True, slots=True)
class Roofline:
    gemm_gflops: float
    stream_gbs: float
    copy_gbs: float


@dataclass(frozen=True, slots=True)
class Line:
    """One measurement; ``ratio`` is the rate over the limit that bounds it."""

    what: str
    seconds: float
    rate: str
    ratio: float | None
    limit: str


def best(run: Callable[[], object], runs: int) -> float:
    """Seconds of the fastest of ``runs`` runs, after one to warm up."""
    run()
    fastest = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        run()
        fastest = min(fastest, time.perf_counter() - started)
    return fastest


def measure_roofline(runs: int) -> Roofline:
    rows, columns, layers = 1536, 576, 90
    reorder, multiply = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    weights = [reorder(torch.randn(rows, columns).bfloat16(), 8) for _ in range(layers)]

    def seconds(tokens: int) -> float:
        x = torch.randn(tokens, columns).bfloat16()
        return best(lambda: [multiply(x, w, None, "none", [], "") for w in weights], runs)

    many, one = seconds(512), seconds(1)
    source = torch.empty(64 * 2**20).uniform_()
    target = torch.empty_like(source)
    copy = best(lambda: target.copy_(source), runs)
    parameters = rows * columns * layers
    return Roofline(2 * 512 * parameters / many / 1e9, 2 * parameters / one / 1e9, 2 * source.nbytes / copy / 1e9)


def linear_lines(roofline: Roofline, runs: int) -> Iterator[Line]:
    for form in (WeightForm.BFLOAT16, WeightForm.INT4):
        weights = [random_packed(form, rows, columns) for _ in range(LAYERS) for rows, columns in LAYER_SHAPES]
        for tokens in (1, 2, 4, 8, 16, 64, 256, 512):
            yield _linear_line(form, weights, tokens, roofline, runs if tokens < 64 else max(3, runs // 4))
    head = random_packed(WeightForm.INT8, VOCABULARY, HIDDEN)
    for tokens in (1, 8):
        seconds = best(partial(linear, torch.randn(tokens, HIDDEN), head), runs)
        yield _streamed(f"output layer int8, {tokens} rows", head.num_bytes, seconds, roofline)


def _linear_line(form: WeightForm, weights: list[PackedLinear], tokens: int, roofline: Roofline, runs: int) -> Line:
    inputs = {columns: torch.randn(tokens, columns) for columns in (HIDDEN, INNER)}
    seconds = best(lambda: [linear(inputs[w.in_features], w) for w in weights], runs)
    what = f"linear {form}, 30 layers, {tokens} rows"
    if tokens <= 8:
        return _streamed(what, sum(w.num_bytes for w in weights), seconds, roofline)
    return _computed(what, 2 * tokens * LINEAR_PARAMETERS, seconds, roofline)


def attention_lines(pool: Tensor, roofline: Roofline, runs: int) -> Iterator[Line]:
    for load in (Load(1, 1500, 1), Load(4, 2000, 1), Load(8, 1500, 1)):
        seconds = best(partial(_attend, load, load.batch(pool.shape[0]), pool), runs)
        rate = load.kv_bytes / seconds / 1e9
        what = f"attention, 30 layers, {load.sequences} x {load.context} tokens, decode"
        yield Line(what, seconds, f"{rate:.1f} GB/s", rate / roofline.copy_gbs, "copy_gbs")


def _attend(load: Load, batch: AttentionBatch, pool: Tensor) -> None:
    q = torch.randn(batch.num_tokens, HEADS.num_heads, HEADS.head_dim)
    for layer in range(LAYERS):
        paged_attention(q, pool, layer, batch, 0.125)


def step_lines(pool: Tensor, roofline: Roofline, runs: int) -> Iterator[Line]:
    weights, head = random_decoder(WeightForm.INT4), random_packed(WeightForm.INT8, VOCABULARY, HIDDEN)
    weight_bytes = head.num_bytes + sum(p.num_bytes for x in weights.layers for p in (x.qkv, x.o, x.gate_up, x.down))
    for load in (Load(1, 1500, 1), Load(8, 1500, 1)):
        seconds = best(partial(_step, weights, head, load, load.batch(pool.shape[0]), pool), runs)
        yield _streamed(
            f"step, {load.sequences} x {load.context} tokens, decode", weight_bytes + load.kv_bytes, seconds, roofline
        )
    for load in (Load(1, 1314, 1314), Load(1, 1675, 175), Load(1, 2512, 512)):
        batch = load.batch(pool.shape[0])
        seconds = best(partial(_step, weights, head, load, batch, pool), max(3, runs // 4))
        # Each new token sees half of the new ones, and all before them.
        pairs = load.new * (load.context - load.new / 2)
        flops = 2 * load.new * LINEAR_PARAMETERS + pairs * 4 * HEADS.num_heads * HEADS.head_dim * LAYERS
        line = _computed(f"step, {load.new} new of {load.context} tokens, prefill", flops, seconds, roofline)
        attention = best(partial(_attend, load, batch, pool), max(3, runs // 4))
        rate = f"{load.new / seconds:.0f} tok/s, attention {attention / seconds:.0%}"
        yield Line(line.what, seconds, rate, line.ratio, line.limit)


def _step(weights: DecoderWeights, head: PackedLinear, load: Load, batch: AttentionBatch, pool: Tensor) -> None:
    hidden = decoder(torch.randn(batch.num_tokens, HIDDEN), weights, batch, pool)
    linear(hidden[: load.sequences].contiguous(), head)


def _streamed(what: str, num_bytes: int, seconds: float, roofline: Roofline) -> Line:
    rate = num_bytes / seconds / 1e9
    return Line(what, seconds, f"{rate:.1f} GB/s", rate / roofline.stream_gbs, "stream_gbs")


def _computed(what: str, flops: float, seconds: float, roofline: Roofline) -> Line:
    rate = flops / seconds / 1e9
    return Line(what, seconds, f"{rate:.0f} GFLOP/s", rate / roofline.gemm_gflops, "gemm_gflops")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sessile.kernels.bench", description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    console = Console(soft_wrap=True)
    selection = prepare("cpu", lambda stage, fraction: console.print(f"{stage}: {fraction:.0%}"))
    console.print(f"{selection.reason}, {arguments.threads} threads")
    roofline = measure_roofline(arguments.runs)
    console.print(roofline)
    pool = random_pool(1024)
    table = Table("what", "ms", "rate", "x limit", "limit", box=None)
    for lines in (
        linear_lines(roofline, arguments.runs),
        attention_lines(pool, roofline, arguments.runs),
        step_lines(pool, roofline, arguments.runs),
    ):
        for line in lines:
            ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
            table.add_row(line.what, f"{line.seconds * 1e3:.2f}", line.rate, ratio, line.limit)
    console.print(table)


if __name__ == "__main__":
    main()
