"""How a row of q, k and v splits into heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """A row holds ``num_heads`` query heads, then ``num_kv_heads`` key heads, then as many value heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.num_kv_heads <= 0 or self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads do not share {self.num_kv_heads} key heads evenly")

    @property
    def row_width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMS norm of each query and key head before the rotation (Qwen3). Weights are [head_dim] float32."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float
