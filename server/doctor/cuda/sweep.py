"""Times of other configurations than the table's, for who tunes the table: one run tells many."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace

from ....kernels.cuda_config import AttentionTile, CudaConfig, Tile
from ....kernels.linear import pack
from ....kernels.linear import triton as linear_kernels
from .inputs import normal, weight_of
from .speed import decode_variants, extend_flops, extend_variants, kv_bytes
from .timing import graph_seconds, seconds

_DECODE = [(64, 4, 3), (64, 4, 5), (64, 4, 7), (64, 8, 5), (32, 4, 7), (128, 8, 3), (128, 4, 3)]
_EXTEND = [(128, 64, 8, 3), (128, 64, 8, 5), (128, 128, 8, 3), (64, 64, 4, 3), (64, 64, 4, 5), (128, 32, 8, 5)]
_SKINNY = [(32, 256, 4, 3), (32, 256, 4, 4), (16, 512, 4, 4), (64, 128, 4, 4), (64, 256, 8, 3), (32, 512, 8, 3)]
_QUANTISED = [(64, 128, 8, 4), (32, 256, 8, 3), (64, 256, 8, 3), (32, 128, 4, 5), (128, 128, 8, 3)]


def print_sweep(config: CudaConfig) -> None:
    """Write a line for each configuration; one that cannot be compiled or run says so."""
    for keys, warps, stages in _DECODE:
        changed = replace(config, decode=AttentionTile(16, keys, warps, stages))
        cut = f"keys {keys} warps {warps} stages {stages}"
        for sequences, context in ((64, 4096), (1, 32_768)):
            rate = functools.partial(_decode_rate, changed, sequences, context)
            _try(f"decode {sequences} x {context} {cut}", rate, "TB/s")
    for rows, keys, warps, stages in _EXTEND:
        changed = replace(config, extend=AttentionTile(rows, keys, warps, stages))
        cut = f"rows {rows} keys {keys} warps {warps} stages {stages}"
        _try(f"extend 4 x 4096 {cut}", functools.partial(_extend_rate, changed), "TFLOP/s")
    for form, tiles in (("dense", _SKINNY), ("int4", _QUANTISED)):
        for columns, inner, warps, stages in tiles:
            rate = functools.partial(_linear_rate, form, Tile(16, columns, inner, warps, stages))
            cut = f"columns {columns} inner {inner} warps {warps} stages {stages}"
            _try(f"linear {form} 6144 x 4096 {cut}", rate, "TB/s")


def _decode_rate(config: CudaConfig, sequences: int, context: int) -> float:
    work = decode_variants(config, sequences, context, layers=2 if sequences > 1 else 8)
    return kv_bytes(sequences, context) / graph_seconds(work, repeat=8) / 1e12


def _extend_rate(config: CudaConfig) -> float:
    return extend_flops(4, 4096) / seconds(extend_variants(config, 4, 4096), repeat=8) / 1e12


def _linear_rate(form: str, tile: Tile) -> float:
    packed = [pack(weight_of(form, 6144, 4096), device="cuda") for _ in range(6)]
    x = normal(1, 4096)
    work = [functools.partial(linear_kernels.run_linear, x, p, None, None, x.dtype, tile) for p in packed]
    return packed[0].num_bytes / graph_seconds(list(work)) / 1e12


def _try(name: str, rate: Callable[[], float], unit: str) -> None:
    try:
        found = f"{rate():.2f} {unit}"
    except (RuntimeError, ValueError) as error:  # too much shared memory, above all
        found = f"not possible: {str(error).splitlines()[0][:80]}"
    sys.stdout.write(f"{name}: {found}\n")
    sys.stdout.flush()
