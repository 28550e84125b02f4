"""RMS norm on a GPU: one program a row, which stays in registers between its two uses."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..tile import narrow


@triton.jit
def _rms_norm(x_ptr, weight_ptr, out_ptr, eps, width, WIDTH: tl.constexpr):
    # x, out [rows, width]; weight [width] float32
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    tl.store(out_ptr + row * width + column, narrow(x * scale * weight, out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_rms_norm(x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, eps, width, WIDTH: tl.constexpr):
    # x, residual, out, total [rows, width]; weight [width] float32
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    at = row * width + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = x + tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(total_ptr + at, narrow(total, total_ptr.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, 0) / width + eps)
    tl.store(out_ptr + at, narrow(total * scale * weight, out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, width = x.shape
    if rows:
        _rms_norm[(rows,)](x, weight, out, eps, width, WIDTH=_padded(width), num_warps=_warps(width))
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(residual)
    rows, width = x.shape
    if rows:
        _add_rms_norm[(rows,)](
            x, residual, weight, out, total, eps, width, WIDTH=_padded(width), num_warps=_warps(width)
        )
    return out, total


def _padded(width: int) -> int:
    return max(128, int(triton.next_power_of_2(width)))


def _warps(width: int) -> int:
    """So that a thread holds 8 to 16 elements of a row."""
    return min(16, max(1, _padded(width) // 512))
