"""Linear layers over weights that were packed at load time.

Each output accumulates over the whole of K in one order, whatever the number of rows: a row gives the same bits alone
and among others.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..backend import cpu_library
from ..cpu.library import LinearArgs, pointer
from ..cuda_config import config_of
from . import reference
from .packed import PackedLinear, WeightForm, pack
from .weights import DenseWeight, Fp8Weight, Int4Weight, Int8Weight, Weight, concatenate

__all__ = [
    "DenseWeight",
    "Fp8Weight",
    "Int4Weight",
    "Int8Weight",
    "PackedLinear",
    "Weight",
    "WeightForm",
    "concatenate",
    "linear",
    "pack",
]


def linear(
    x: Tensor,
    packed: PackedLinear,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``(x @ weightᵀ + bias) + residual``, a new tensor [T, N] float32.

    ``x`` [T, K] float32, ``bias`` [N] float32, ``residual`` [T, N] float32. On a GPU activations are bfloat16 where the
    weights are, and the result is as ``x``, or ``out_dtype``. Raises: ValueError for other shapes.
    """
    out_shape = (x.shape[0], packed.out_features)
    if x.dim() != 2 or x.shape[1] != packed.in_features:
        raise ValueError(f"x is {tuple(x.shape)}, the layer takes [T, {packed.in_features}]")
    if (bias is not None and bias.shape != out_shape[1:]) or (residual is not None and residual.shape != out_shape):
        raise ValueError(f"bias and residual do not fit {out_shape}")
    if x.is_cuda:
        from . import triton as on_gpu

        return on_gpu.linear(x, packed, bias, residual, out_dtype, config_of(x.device))
    library = cpu_library(x.device) if packed.in_blocks else None
    if library is None:
        return reference.linear(x, packed.dequantise(), bias, residual)
    out = torch.empty(out_shape, dtype=torch.float32)
    addends = (pointer(bias), pointer(residual), pointer(out))
    library.call("sessile_linear", LinearArgs(pointer(x), x.shape[0], ctypes.pointer(packed.args), *addends))
    return out
