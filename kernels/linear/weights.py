"""The forms in which a checkpoint holds a linear layer's weight, before packing.

Quantised weights have one meaning in bfloat16, given by ``dequantise``: the float32 value rounded to the nearest
bfloat16, ties away from zero (two integer operations where ties-to-even takes five; a tie is as near either way).
Every kernel multiplies with exactly these values, so a layer gives the same bits whether it is kept quantised or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32  # weights along K that share a scale


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """``tensor`` [N, K], float32 or bfloat16 (others are rounded to bfloat16)."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.tensor.shape[0], self.tensor.shape[1]

    def dequantise(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return self.tensor.to(dtype)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """``w = q * scale``. ``q`` [N, K] int8; ``scale`` [N, K / 32], or [N] for one a channel; kept as float16.

    Raises: ValueError for shapes that do not fit.
    """

    q: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        rows, columns = self.q.shape
        scale = self.scale.reshape(rows, -1)
        if columns % GROUP or scale.shape[1] not in (1, columns // GROUP):
            raise ValueError(f"int8 weight {tuple(self.q.shape)} does not fit scales {tuple(self.scale.shape)}")
        object.__setattr__(self, "scale", _half(scale.expand(rows, columns // GROUP)))

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1]

    def dequantise(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """[N, K]: exact in float32; nearest, ties away from zero, in bfloat16."""
        exact = self.q.float() * self.scale.float().repeat_interleave(GROUP, dim=1)
        return round_to_bfloat16(exact) if dtype == torch.bfloat16 else exact.to(dtype)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """``w = q * scale + minimum``. ``q`` [N, K] uint8 in 0..15; ``scale`` and ``minimum`` [N, K / 32], kept as float16.

    GGUF Q4_1 is exactly this (d, m); Q4_0 is ``minimum = -8 * scale``. Raises: ValueError for shapes that do not fit.
    """

    q: Tensor
    scale: Tensor
    minimum: Tensor

    def __post_init__(self) -> None:
        rows, columns = self.q.shape
        groups = (rows, columns // GROUP)
        if columns % GROUP or self.scale.shape != groups or self.minimum.shape != groups:
            raise ValueError(f"int4 weight {tuple(self.q.shape)} does not fit scales {tuple(self.scale.shape)}")
        object.__setattr__(self, "scale", _half(self.scale))
        object.__setattr__(self, "minimum", _half(self.minimum))

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1]

    def dequantise(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """[N, K]: one rounding to float32; then nearest, ties away from zero, in bfloat16."""
        scale = self.scale.double().repeat_interleave(GROUP, dim=1)
        minimum = self.minimum.double().repeat_interleave(GROUP, dim=1)
        # The kernels compute (1 + q/128) * 128 scale + (minimum - 128 scale); the second term is rounded to float32.
        offset = (minimum - 128 * scale).float().double()
        exact = ((1 + self.q.double() / 128) * (128 * scale) + offset).float()
        return round_to_bfloat16(exact) if dtype == torch.bfloat16 else exact.to(dtype)


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """``w = q * scale``. ``q`` [N, K] float8_e4m3fn, ``scale`` [N] float32, one a channel; GPUs alone read it as it is.

    The scale multiplies the sum over K. Raises: ValueError for shapes that do not fit.
    """

    q: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        if self.q.dtype != torch.float8_e4m3fn or self.scale.numel() != self.q.shape[0]:
            raise ValueError(f"fp8 weight {tuple(self.q.shape)} does not fit scales {tuple(self.scale.shape)}")
        object.__setattr__(self, "scale", self.scale.flatten().float())

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1]

    def dequantise(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """[N, K]: the product, rounded to ``dtype``."""
        return (self.q.float() * self.scale.unsqueeze(1)).to(dtype)


Weight = DenseWeight | Int8Weight | Int4Weight | Fp8Weight


def concatenate(weights: Sequence[Weight]) -> Weight:
    """One weight with the rows of all, in order (q, k and v; gate and up). Mixed forms become dense bfloat16."""
    if all(isinstance(w, Int4Weight) for w in weights):
        int4 = [w for w in weights if isinstance(w, Int4Weight)]
        return Int4Weight(
            torch.cat([w.q for w in int4]), torch.cat([w.scale for w in int4]), torch.cat([w.minimum for w in int4])
        )
    if all(isinstance(w, Int8Weight) for w in weights):
        int8 = [w for w in weights if isinstance(w, Int8Weight)]
        return Int8Weight(torch.cat([w.q for w in int8]), torch.cat([w.scale for w in int8]))
    if all(isinstance(w, DenseWeight) for w in weights):
        return DenseWeight(torch.cat([w.dequantise(_dense_dtype(weights)) for w in weights]))
    return DenseWeight(torch.cat([w.dequantise(torch.bfloat16) for w in weights]))


def round_to_bfloat16(exact: Tensor) -> Tensor:
    """float32 to bfloat16: nearest, ties away from zero."""
    bits = (exact.contiguous().view(torch.int32) + 0x8000) >> 16
    return bits.to(torch.int16).view(torch.bfloat16)


def _dense_dtype(weights: Sequence[Weight]) -> torch.dtype:
    exact = all(isinstance(w, DenseWeight) and w.tensor.dtype == torch.float32 for w in weights)
    return torch.float32 if exact else torch.bfloat16


def _half(scale: Tensor) -> Tensor:
    half = scale.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise ValueError("a quantised weight's scale does not fit float16")
    return half
