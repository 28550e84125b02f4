"""Inverse frequencies of the rotary embedding, with the scalings for longer contexts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...sessions.errors import ModelError
from .config import RopeConfig, RopeKind


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim / 2] float64: radians by which each pair turns for one position.

    Raises:
        ModelError: the factors given by the weights' file are not one for each pair.
    """
    # transformers computes these in float32; so do we, and widen them after.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    plain = 1.0 / (rope.base**exponents)
    match rope.kind:
        case RopeKind.DEFAULT:
            scaled = plain
        case RopeKind.LINEAR:
            scaled = plain / rope.factor
        case RopeKind.LLAMA3:
            scaled = _llama3(plain, rope)
        case RopeKind.YARN:
            scaled = _yarn(plain, rope, head_dim)
        case RopeKind.FACTORS:
            if len(rope.factors) != head_dim // 2:
                raise ModelError(
                    f"rope_freqs.weight has {len(rope.factors)} factors for {head_dim // 2} pairs",
                    field="rope_freqs.weight",
                )
            scaled = plain / torch.tensor(rope.factors)
    return scaled.double()


def attention_factor(rope: RopeConfig) -> float:
    """What cosines and sines are multiplied with (YaRN, https://arxiv.org/abs/2309.00071, equation 22)."""
    if rope.kind is not RopeKind.YARN:
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: long waves are stretched by the factor, short ones kept, those between blended."""
    low_wave = rope.original_max_position / rope.low_frequency_factor
    high_wave = rope.original_max_position / rope.high_frequency_factor
    waves = 2 * math.pi / plain
    blend = (rope.original_max_position / waves - rope.low_frequency_factor) / (
        rope.high_frequency_factor - rope.low_frequency_factor
    )
    blended = (1 - blend) * plain / rope.factor + blend * plain
    scaled = torch.where(waves > low_wave, plain / rope.factor, plain)
    between = (waves >= high_wave) & (waves <= low_wave)
    return torch.where(between, blended, scaled)


def _yarn(plain: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    """YaRN: pairs that turn often in the original context are kept, those that hardly turn are stretched."""

    def pair_with_turns(turns: float) -> float:
        return head_dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    first = max(math.floor(pair_with_turns(rope.beta_fast)), 0)
    last = min(math.ceil(pair_with_turns(rope.beta_slow)), head_dim - 1)
    width = max(last - first, 0.001)
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return plain / rope.factor * stretched + plain * (1 - stretched)
