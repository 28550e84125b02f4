"""The decoder as a GPU runs it, interpreted: few rows in fused kernels, many rows op by op."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from closeness import assert_close
from torch import Tensor

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.cuda_config import Arithmetic, AttentionTile, Tile, config_for
from sessile.kernels.decoder import DecoderLayer, DecoderWeights, cuda
from sessile.kernels.decoder import reference as in_torch
from sessile.kernels.kv_layout import KVLayout, KVOrder
from sessile.kernels.linear import DenseWeight, PackedLinear, pack
from sessile.kernels.linear.rows import pack_rows
from sessile.kernels.rotary import Heads, QKNorm, cos_sin_table

HEADS, HIDDEN, INNER, LAYERS = Heads(6, 2, 64), 64, 96, 2
TILE = Tile(rows=16, columns=64, inner=64, num_warps=4, num_stages=2)
ATTENTION = AttentionTile(rows=64, keys=32, num_warps=4, num_stages=2)
FAST = dataclasses.replace(
    config_for(90, Arithmetic.FAST), skinny=TILE, skinny_normed=TILE, gated=TILE, decode=ATTENTION, extend=ATTENTION
)


def _weights() -> tuple[DecoderWeights, DecoderWeights]:
    """The same weights, packed for a GPU and for torch."""
    shapes = {
        "qkv": (HEADS.row_width, HIDDEN),
        "o": (HIDDEN, 384),
        "gate_up": (2 * INNER, HIDDEN),
        "down": (HIDDEN, INNER),
    }
    cos_sin = cos_sin_table(1e4 ** -(torch.arange(0, 64, 2) / 64), 64)
    layers: tuple[list[DecoderLayer], list[DecoderLayer]] = ([], [])
    for _ in range(LAYERS):
        dense = {name: DenseWeight((torch.randn(shape) * 0.1).bfloat16()) for name, shape in shapes.items()}
        vectors = {name: torch.rand(HIDDEN) + 0.5 for name in ("input_norm", "post_norm")}
        vectors["qkv_bias"] = torch.randn(HEADS.row_width)
        norm = QKNorm(torch.rand(64) + 0.5, torch.rand(64) + 0.5, 1e-6)
        on_gpu: dict[str, PackedLinear] = {name: pack_rows(weight, "cpu") for name, weight in dense.items()}
        plain: dict[str, PackedLinear] = {name: pack(weight) for name, weight in dense.items()}
        layers[0].append(DecoderLayer(**on_gpu, **vectors, qk_norm=norm))
        layers[1].append(DecoderLayer(**plain, **vectors, qk_norm=norm))
    final = torch.rand(HIDDEN) + 0.5
    return (
        DecoderWeights(layers[0], final, cos_sin, HEADS, 0.125, 1e-5),
        DecoderWeights(layers[1], final, cos_sin, HEADS, 0.125, 1e-5),
    )


def _pool(order: KVOrder) -> Tensor:
    return KVLayout(LAYERS, 2, 64, 16, torch.bfloat16, order).allocate(6)


@pytest.mark.parametrize("tokens", [20, 33])
def test_a_prompt_and_its_decode(tokens: int) -> None:
    weights, plain = _weights()
    pool, grouped = _pool(KVOrder.PLAIN), _pool(KVOrder.GROUPED)
    x = torch.randn(tokens + 1, HIDDEN).bfloat16()
    prompt = AttentionBatch.build([[5, 1, 3]], [tokens], [tokens], 16)
    found = cuda.decoder(x[:-1], weights, prompt, pool, FAST)
    wanted = in_torch.decoder(x[:-1].float(), plain, prompt, grouped)
    assert found.dtype == torch.bfloat16
    assert_close(found, wanted, 4e-2)
    decode = AttentionBatch.build([[5, 1, 3]], [tokens + 1], [1], 16)
    found = cuda.decoder(x[-1:], weights, decode, pool, FAST)  # few rows: the fused kernels
    assert_close(found, in_torch.decoder(x[-1:].float(), plain, decode, grouped), 4e-2)
