"""Linear layers over weights that were packed at load time.

Each output accumulates over the whole of K in one order, whatever the number of rows: a row gives the same bits alone
and among others.
"""

from __future__ import annotations

from torch import Tensor

from . import reference
from .packed import PackedLinear, WeightForm, pack
from .weights import DenseWeight, Int4Weight, Int8Weight, Weight, concatenate

__all__ = [
    "DenseWeight",
    "Int4Weight",
    "Int8Weight",
    "PackedLinear",
    "Weight",
    "WeightForm",
    "concatenate",
    "linear",
    "pack",
]


def linear(x: Tensor, packed: PackedLinear, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """``(x @ weightᵀ + bias) + residual``, a new tensor [T, N] float32.

    ``x`` [T, K] float32, ``bias`` [N] float32, ``residual`` [T, N] float32. Raises: ValueError for other shapes.
    """
    if x.dim() != 2 or x.shape[1] != packed.in_features:
        raise ValueError(f"x is {tuple(x.shape)}, the layer takes [T, {packed.in_features}]")
    return reference.linear(x, packed.dequantise(), bias, residual)
