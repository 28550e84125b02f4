"""A model of the embedded model's shape (SmolLM2-135M) with random weights, for measurements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention_batch import AttentionBatch
from .decoder import DecoderLayer, DecoderWeights
from .kv_layout import KVLayout
from .linear import DenseWeight, Int4Weight, Int8Weight, PackedLinear, Weight, WeightForm, pack
from .rotary import Heads, cos_sin_table

HEADS = Heads(9, 3, 64)
HIDDEN, INNER, LAYERS, VOCABULARY, BLOCK_SIZE = 576, 1536, 30, 49152, 16
LAYER_SHAPES = ((HEADS.row_width, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER))


def random_packed(form: WeightForm, rows: int, columns: int) -> PackedLinear:
    """A packed weight with random values of a model's size."""
    weight: Weight
    if form is WeightForm.INT4:
        scale = torch.rand(rows, columns // 32) * 0.01
        weight = Int4Weight(torch.randint(0, 16, (rows, columns), dtype=torch.uint8), scale, scale * -8)
    elif form is WeightForm.INT8:
        q = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
        weight = Int8Weight(q, torch.rand(rows, columns // 32) * 1e-3)
    else:
        weight = DenseWeight((torch.randn(rows, columns) * 0.02).bfloat16())
    return pack(weight)


def random_decoder(form: WeightForm) -> DecoderWeights:
    """All 30 layers, linear weights in ``form``."""

    def layer() -> DecoderLayer:
        qkv, o, gate_up, down = (random_packed(form, rows, columns) for rows, columns in LAYER_SHAPES)
        return DecoderLayer(torch.ones(HIDDEN), qkv, o, torch.ones(HIDDEN), gate_up, down)

    frequencies = 1e5 ** -(torch.arange(0, HEADS.head_dim, 2) / HEADS.head_dim)
    table = cos_sin_table(frequencies, 8192)
    return DecoderWeights([layer() for _ in range(LAYERS)], torch.ones(HIDDEN), table, HEADS, 0.125, 1e-5)


@dataclass(frozen=True, slots=True)
class Load:
    """``sequences`` sequences of ``context`` tokens each, of which ``new`` are computed in the step."""

    sequences: int
    context: int
    new: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of the contexts, all layers, bfloat16."""
        return self.sequences * self.context * LAYERS * 2 * HEADS.num_kv_heads * HEADS.head_dim * 2

    def batch(self, num_blocks: int) -> AttentionBatch:
        """With blocks scattered over a pool of ``num_blocks``."""
        each = -(-self.context // BLOCK_SIZE)
        blocks = torch.randperm(num_blocks)[: each * self.sequences].view(self.sequences, each).tolist()
        return AttentionBatch.build(blocks, [self.context] * self.sequences, [self.new] * self.sequences, BLOCK_SIZE)


def random_pool(num_blocks: int) -> Tensor:
    layout = KVLayout(LAYERS, HEADS.num_kv_heads, HEADS.head_dim, BLOCK_SIZE, torch.bfloat16)
    return layout.allocate(num_blocks).normal_()
