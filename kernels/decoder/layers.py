"""The packed weights of a dense decoder (Llama, SmolLM2, Mistral, Qwen2, Qwen3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..linear import PackedLinear
from ..rotary import Heads, QKNorm
from .native import NativeDecoder, describe


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer: pre-norm attention with grouped heads, then pre-norm SwiGLU. Norms and biases are float32."""

    input_norm: Tensor  # [H]
    qkv: PackedLinear  # [(Hq + 2 Hkv) * D, H]
    o: PackedLinear  # [H, Hq * D]
    post_norm: Tensor  # [H]
    gate_up: PackedLinear  # [2 * I, H], gate first
    down: PackedLinear  # [H, I]
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    qk_norm: QKNorm | None = None


@dataclass(frozen=True)
class DecoderWeights:
    """All layers (at least one), and what they share."""

    layers: Sequence[DecoderLayer]
    final_norm: Tensor  # [H]
    cos_sin: Tensor  # [max_position, D] float32, see rotary.cos_sin_table
    heads: Heads
    attention_scale: float
    eps: float

    @cached_property
    def native(self) -> NativeDecoder | None:
        """The same for the C++ decoder; None where it does not fit."""
        return describe(self)
