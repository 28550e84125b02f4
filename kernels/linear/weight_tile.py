"""Reads a tile of a weight, in any form, as values that can be multiplied."""

from __future__ import annotations

import enum

import triton
import triton.language as tl

from ..tile import round_half_away
from .packed import WeightForm


class TileForm(enum.IntEnum):
    """The forms of ``rows.py`` as kernels know them."""

    DENSE = 0
    INT8 = 1
    INT4 = 2
    FP8 = 3


TILE_FORM = {
    WeightForm.ROWS: TileForm.DENSE,
    WeightForm.INT8_ROWS: TileForm.INT8,
    WeightForm.INT4_ROWS: TileForm.INT4,
    WeightForm.FP8_ROWS: TileForm.FP8,
}

_INT8 = tl.constexpr(int(TileForm.INT8))
_INT4 = tl.constexpr(int(TileForm.INT4))
_FP8 = tl.constexpr(int(TileForm.FP8))
_GROUP = tl.constexpr(32)


@triton.jit
def _group_scales(scale_ptr, row, inside, start, width, COLUMNS: tl.constexpr, INNER: tl.constexpr):
    """float16 scales of a tile's groups as [COLUMNS, INNER] float32."""
    GROUPS: tl.constexpr = INNER // _GROUP
    group = start // _GROUP + tl.arange(0, GROUPS)
    at = row.to(tl.int64)[:, None] * (width // _GROUP) + group[None, :]
    usable = inside[:, None] & (group < width // _GROUP)[None, :]
    scale = tl.load(scale_ptr + at, mask=usable, other=0.0).to(tl.float32)  # [COLUMNS, GROUPS]
    wide = tl.broadcast_to(scale[:, :, None], (COLUMNS, GROUPS, _GROUP))
    return tl.reshape(wide, (COLUMNS, INNER))


@triton.jit
def _from_fp8(bits):
    """The bits of float8_e4m3fn as bfloat16, exactly, on any GPU."""
    wide = bits.to(tl.uint32)
    moved = ((wide & 0x80) << 24) | ((wide & 0x7F) << 20)
    value = moved.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120: the exponents' biases are 127 and 7
    return value.to(tl.bfloat16)


@triton.jit
def weight_tile(
    weight_ptr,
    scale_ptr,
    minimum_ptr,
    row,
    inside,
    start,
    width,
    FORM: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Rows ``row`` [COLUMNS] of a weight [., width], its columns ``start`` to ``start + INNER``: [COLUMNS, INNER].

    Rows that are not ``inside`` are 0; EVEN: width is a multiple of INNER. fp8 comes without its scale.
    """
    if FORM == _INT4:
        byte = start // 2 + tl.arange(0, INNER // 2)
        at = row.to(tl.int64)[:, None] * (width // 2) + byte[None, :]
        usable = inside[:, None]
        if not EVEN:
            usable = usable & (byte < width // 2)[None, :]
        pairs = tl.load(weight_ptr + at, mask=usable, other=0)
        q = tl.interleave(pairs & 15, pairs >> 4).to(tl.float32)
        scale = _group_scales(scale_ptr, row, inside, start, width, COLUMNS, INNER)
        minimum = _group_scales(minimum_ptr, row, inside, start, width, COLUMNS, INNER)
        tile = round_half_away(tl.fma(1.0 + q * 0.0625, 16.0 * scale, minimum - 16.0 * scale))
    else:
        column = start + tl.arange(0, INNER)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        usable = inside[:, None]
        if not EVEN:
            usable = usable & (column < width)[None, :]
        stored = tl.load(weight_ptr + at, mask=usable, other=0)
        if FORM == _INT8:
            scale = _group_scales(scale_ptr, row, inside, start, width, COLUMNS, INNER)
            tile = round_half_away(stored.to(tl.float32) * scale)
        elif FORM == _FP8:
            tile = _from_fp8(stored)
        else:
            tile = stored
    return tile
