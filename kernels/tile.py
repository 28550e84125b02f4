"""Pieces of Triton code that several kernels use."""

from __future__ import annotations

import os

import triton
import triton.language as tl

# The interpreter multiplies bfloat16 tiles by their bits; there they are widened first.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def dot(a, b, accumulator):
    """``accumulator + a @ b`` in float32; float32 operands keep nearly all of their precision."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator, input_precision="ieee")
    # float32 in three products of tf32: nearly exact, and on the tensor cores
    return tl.dot(a, b, accumulator, input_precision="tf32x3")


@triton.jit
def narrow(x, dtype):
    """``x`` float32 as ``dtype``, to nearest."""
    return x.to(dtype)


@triton.jit
def round_half_away(x):
    """float32 to bfloat16, to nearest, ties away from zero: what quantised weights mean on every device."""
    bits = (x.to(tl.uint32, bitcast=True) + 0x8000) >> 16
    return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def locate(starts_ptr, num_groups, tile_rows: tl.constexpr, wanted, GROUPS: tl.constexpr):
    """In which of ``num_groups`` runs of rows tile ``wanted`` lies, when each run is cut in tiles of ``tile_rows``.

    ``starts`` [num_groups + 1] int32 are the runs' first rows. Returns (group, tile in the group); the group is
    ``num_groups`` where there is no such tile. GROUPS: a power of two, at least num_groups.
    """
    group = tl.arange(0, GROUPS)
    inside = group < num_groups
    first = tl.load(starts_ptr + group, mask=inside, other=0)
    last = tl.load(starts_ptr + group + 1, mask=inside, other=0)
    tiles = (last - first + tile_rows - 1) // tile_rows
    ends = tl.cumsum(tiles, 0)
    found = tl.sum((inside & (ends <= wanted)).to(tl.int32), 0)
    before = tl.sum(tl.where(group == found - 1, ends, 0), 0)
    return found, wanted - before
