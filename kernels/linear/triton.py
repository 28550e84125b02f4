"""Linear layers on a GPU, over weights in plain rows.

Few rows: one pass over the weight, each program a strip of outputs over the whole of K. Many rows: cuBLAS, after
dequantising where the weight is quantised. Deterministic: one tile for any number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cuda_config import CudaConfig, Tile
from ..tile import dot, narrow
from .packed import PackedLinear, WeightForm
from .rows import unpacked
from .weight_tile import TILE_FORM, TileForm, weight_tile

_ROWS_BLAS = 128  # from so many rows on, a quantised weight is dequantised once and multiplied by cuBLAS
_FP8 = tl.constexpr(int(TileForm.FP8))


@triton.jit(do_not_specialize=["num_rows"])
def _linear(
    x_ptr,
    weight_ptr,
    scale_ptr,
    minimum_ptr,
    norm_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    num_rows,
    num_columns,
    width,
    eps,
    FORM: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
):
    # x [rows, width], weight [columns, width], norm [width] float32, bias [columns] float32,
    # residual and out [rows, columns].
    # Computed the other way round, weight times x transposed: few rows then are the narrow side of the product.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_there, column_there = row < num_rows, column < num_columns
    sums = tl.zeros((COLUMNS, ROWS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, width, INNER):
        weight = weight_tile(
            weight_ptr, scale_ptr, minimum_ptr, column, column_there, start, width, FORM, COLUMNS, INNER, EVEN
        )
        inner = start + tl.arange(0, INNER)
        usable = row_there[:, None]
        if not EVEN:
            usable = usable & (inner < width)[None, :]
        x = tl.load(x_ptr + row.to(tl.int64)[:, None] * width + inner[None, :], mask=usable, other=0.0)
        if HAS_NORM:
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            x = wide * tl.load(norm_ptr + inner, mask=inner < width, other=0.0)[None, :]
        sums = dot(weight, tl.trans(narrow(x, weight.dtype)), sums)
    if HAS_NORM:
        sums *= tl.rsqrt(squares / width + eps)[None, :]
    if FORM == _FP8:
        sums *= tl.load(scale_ptr + column, mask=column_there, other=0.0)[:, None]
    if HAS_BIAS:
        sums += tl.load(bias_ptr + column, mask=column_there, other=0.0)[:, None]
    usable = row_there[:, None] & column_there[None, :]
    at = row.to(tl.int64)[:, None] * num_columns + column[None, :]
    result = tl.trans(sums)
    if HAS_RESIDUAL:
        result += tl.load(residual_ptr + at, mask=usable, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, narrow(result, out_ptr.dtype.element_ty), mask=usable)


@triton.jit(do_not_specialize=["num_rows"])
def _gated_linear(
    x_ptr,
    weight_ptr,
    scale_ptr,
    minimum_ptr,
    norm_ptr,
    out_ptr,
    num_rows,
    num_columns,
    width,
    eps,
    FORM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
):
    # x [rows, width], weight [2 * columns, width] gate first, norm [width] float32, out [rows, columns]
    # silu(norm(x) @ gate) * (norm(x) @ up); the norm's factor of a row is applied to both sums at the end.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_there, column_there = row < num_rows, column < num_columns
    gates = tl.zeros((COLUMNS, ROWS), tl.float32)
    ups = tl.zeros((COLUMNS, ROWS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, width, INNER):
        gate = weight_tile(
            weight_ptr, scale_ptr, minimum_ptr, column, column_there, start, width, FORM, COLUMNS, INNER, EVEN
        )
        up = weight_tile(
            weight_ptr, scale_ptr, minimum_ptr, column + num_columns, column_there, start, width, FORM, COLUMNS, INNER,
            EVEN,
        )  # fmt: skip
        inner = start + tl.arange(0, INNER)
        usable = row_there[:, None] & (inner < width)[None, :]
        x = tl.load(x_ptr + row.to(tl.int64)[:, None] * width + inner[None, :], mask=usable, other=0.0).to(tl.float32)
        squares += tl.sum(x * x, 1)
        normed = x * tl.load(norm_ptr + inner, mask=inner < width, other=0.0)[None, :]
        turned = tl.trans(narrow(normed, gate.dtype))
        gates = dot(gate, turned, gates)
        ups = dot(up, turned, ups)
    factor = tl.rsqrt(squares / width + eps)[None, :]
    if FORM == _FP8:
        gates *= tl.load(scale_ptr + column, mask=column_there, other=0.0)[:, None]
        ups *= tl.load(scale_ptr + num_columns + column, mask=column_there, other=0.0)[:, None]
    gates *= factor
    result = tl.trans(gates / (1.0 + tl.exp(-gates)) * (ups * factor))
    at = row.to(tl.int64)[:, None] * num_columns + column[None, :]
    tl.store(out_ptr + at, narrow(result, out_ptr.dtype.element_ty), mask=row_there[:, None] & column_there[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _dequantise(
    weight_ptr,
    scale_ptr,
    minimum_ptr,
    rows_ptr,
    out_ptr,
    num_rows,
    width,
    FORM: tl.constexpr,
    SELECTED: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    # weight [columns, width] in any form, rows [rows] int64 where SELECTED, out [rows, width] bfloat16
    place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * INNER
    there = place < num_rows
    row = place
    if SELECTED:
        row = tl.load(rows_ptr + place, mask=there, other=0)
    tile = weight_tile(weight_ptr, scale_ptr, minimum_ptr, row, there, start, width, FORM, COLUMNS, INNER, False)
    if FORM == _FP8:
        tile = narrow(tile.to(tl.float32) * tl.load(scale_ptr + row, mask=there, other=0.0)[:, None], tl.bfloat16)
    inner = start + tl.arange(0, INNER)
    at = place.to(tl.int64)[:, None] * width + inner[None, :]
    tl.store(out_ptr + at, tile, mask=there[:, None] & (inner < width)[None, :])


def linear(
    x: Tensor,
    packed: PackedLinear,
    bias: Tensor | None,
    residual: Tensor | None,
    out_dtype: torch.dtype | None,
    config: CudaConfig,
) -> Tensor:
    """As the wrapper; ``out_dtype`` None means that of ``x``."""
    dtype = out_dtype or x.dtype
    if config.is_deterministic:
        return run_linear(x, packed, bias, residual, dtype, config.wide)
    if packed.form is WeightForm.ROWS:
        if x.shape[0] > config.rows_skinny or packed.storage.dtype == torch.float32:
            return _blas(x, packed.storage, bias, residual, dtype)
    elif x.shape[0] >= _ROWS_BLAS:
        return _blas(x, dequantise(packed), bias, residual, dtype)
    tile = skinny_tile(packed, config) if x.shape[0] <= config.rows_skinny else config.wide
    return run_linear(x, packed, bias, residual, dtype, tile)


def norm_linear(
    x: Tensor, norm: Tensor, eps: float, packed: PackedLinear, bias: Tensor | None, config: CudaConfig
) -> Tensor:
    """``linear(rms_norm(x))`` in one kernel, for few rows."""
    tile = config.skinny_normed if packed.form is WeightForm.ROWS else config.skinny_quantised
    return run_linear(x, packed, bias, None, x.dtype, tile, norm, eps)


def skinny_tile(packed: PackedLinear, config: CudaConfig) -> Tile:
    """How a layer over few rows is cut."""
    return config.skinny if packed.form is WeightForm.ROWS else config.skinny_quantised


def gated_linear(x: Tensor, norm: Tensor, eps: float, packed: PackedLinear, config: CudaConfig) -> Tensor:
    """``silu_mul(linear(rms_norm(x)))`` in one kernel, for few rows."""
    rows, columns = x.shape[0], packed.out_features // 2
    tile = config.gated if packed.form is WeightForm.ROWS else config.gated_quantised
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    weight, scale, minimum = parts_of(packed)
    _gated_linear[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
        x.contiguous(),
        weight,
        scale,
        minimum,
        norm,
        out,
        rows,
        columns,
        packed.in_features,
        eps,
        **_cut(packed, tile),
    )
    return out


def run_linear(
    x: Tensor,
    packed: PackedLinear,
    bias: Tensor | None,
    residual: Tensor | None,
    dtype: torch.dtype,
    tile: Tile,
    norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """The Triton kernel with ``tile``, whatever the number of rows."""
    x = x.contiguous()
    rows, columns = x.shape[0], packed.out_features
    out = torch.empty(rows, columns, dtype=dtype, device=x.device)
    if not rows:
        return out
    weight, scale, minimum = parts_of(packed)
    _linear[(triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns))](
        x,
        weight,
        scale,
        minimum,
        x if norm is None else norm,
        x if bias is None else bias,
        x if residual is None else residual.contiguous(),
        out,
        rows,
        columns,
        packed.in_features,
        eps,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        **_cut(packed, tile),
    )
    return out


def dequantise(packed: PackedLinear, rows: Tensor | None = None) -> Tensor:
    """All rows of a weight, or ``rows`` [R] int64, as [., K] bfloat16: the very values that the other kernels multiply
    (fp8: rounded once more, with its scale). A dense weight keeps its dtype."""
    if packed.form is WeightForm.ROWS:
        return packed.storage if rows is None else packed.storage[rows]
    count, width = packed.out_features if rows is None else rows.numel(), packed.in_features
    out = torch.empty(count, width, dtype=torch.bfloat16, device=packed.storage.device)
    weight, scale, minimum = parts_of(packed)
    if count:
        _dequantise[(triton.cdiv(count, 32), triton.cdiv(width, 128))](
            weight,
            scale,
            minimum,
            out if rows is None else rows,
            out,
            count,
            width,
            FORM=int(TILE_FORM[packed.form]),
            SELECTED=rows is not None,
            COLUMNS=32,
            INNER=128,
        )
    return out


def parts_of(packed: PackedLinear) -> tuple[Tensor, Tensor, Tensor]:
    """The weight, its scales and its minima as kernels take them; what a form lacks is the weight again."""
    if packed.form is WeightForm.ROWS:
        return packed.storage, packed.storage, packed.storage
    parts = unpacked(packed)
    return parts.q, parts.scale, parts.minimum


def _cut(packed: PackedLinear, tile: Tile) -> dict[str, int | bool]:
    inner = tile.inner // 2 if packed.storage.dtype == torch.float32 else tile.inner
    return {
        "FORM": int(TILE_FORM[packed.form]),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "INNER": inner,
        "EVEN": packed.in_features % inner == 0,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _blas(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
    x, narrow_bias = x.to(weight.dtype), None if bias is None else bias.to(weight.dtype)
    if dtype != weight.dtype:
        out = torch.mm(x, weight.t(), out_dtype=dtype)
        out = out if bias is None else out + bias
        return out if residual is None else out + residual
    if residual is None:
        return torch.nn.functional.linear(x, weight, narrow_bias)
    out = torch.addmm(residual.to(dtype), x, weight.t())
    return out if narrow_bias is None else out + narrow_bias
