"""A small decoder with every feature: int4 and bf16 weights, biases, grouped heads, norms of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.decoder import DecoderLayer, DecoderWeights, decoder
from sessile.kernels.kv_layout import KVLayout, gather
from sessile.kernels.linear import DenseWeight, Int4Weight, Int8Weight, PackedLinear, Weight, pack
from sessile.kernels.rotary import Heads, QKNorm, cos_sin_table

HEADS = Heads(6, 2, 64)
HIDDEN, INNER, LAYERS, BLOCK_SIZE = 96, 160, 2, 16
FORMS = ("float32", "bfloat16", "int8", "int4")


def random_weight(form: str, rows: int, columns: int) -> Weight:
    """Values around ±1/sqrt(columns)."""
    size = columns**-0.5
    match form:
        case "int8":
            q = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
            return Int8Weight(q, torch.rand(rows, columns // 32) * size / 64)
        case "int4":
            q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
            scale = torch.rand(rows, columns // 32) * size / 4
            return Int4Weight(q, scale, scale * -8 + torch.randn(scale.shape) * size / 8)
    dense = torch.randn(rows, columns) * size
    return DenseWeight(dense if form == "float32" else dense.bfloat16())


def make_weights(form: str) -> DecoderWeights:
    def packed(rows: int, columns: int) -> PackedLinear:
        return pack(random_weight(form, rows, columns))

    width = HEADS.num_heads * HEADS.head_dim
    layers = [
        DecoderLayer(
            torch.rand(HIDDEN) + 0.5,
            packed(HEADS.row_width, HIDDEN),
            packed(HIDDEN, width),
            torch.rand(HIDDEN) + 0.5,
            packed(2 * INNER, HIDDEN),
            packed(HIDDEN, INNER),
            qkv_bias=torch.randn(HEADS.row_width) / 4,
            o_bias=torch.randn(HIDDEN) / 4,
            qk_norm=QKNorm(torch.rand(64) + 0.5, torch.rand(64) + 0.5, 1e-6),
        )
        for _ in range(LAYERS)
    ]
    cos_sin = cos_sin_table(1e4 ** -(torch.arange(0, 64, 2) / 64), 1024)
    return DecoderWeights(layers, torch.rand(HIDDEN) + 0.5, cos_sin, HEADS, 0.125, 1e-5)


@dataclass
class Run:
    """Decodes sequences in the pieces that a test wants, each with blocks of its own, scattered over one pool."""

    weights: DecoderWeights
    dtype: torch.dtype = torch.bfloat16
    num_blocks: int = 256
    decode: Callable[[Tensor, DecoderWeights, AttentionBatch, Tensor], Tensor] = decoder
    free: list[int] = field(init=False)
    pool: Tensor = field(init=False)
    tables: list[list[int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = KVLayout(LAYERS, HEADS.num_kv_heads, HEADS.head_dim, BLOCK_SIZE, self.dtype)
        self.pool = layout.allocate(self.num_blocks)
        self.pool.fill_(float("nan"))  # what nobody wrote must not matter
        self.free = torch.randperm(self.num_blocks).tolist()

    def add(self) -> int:
        """A new, empty sequence."""
        self.tables.append([])
        self.lengths.append(0)
        return len(self.tables) - 1

    def step(self, parts: list[tuple[int, Tensor]]) -> list[Tensor]:
        """One step: for each (sequence, its next embedded tokens) the hidden states."""
        for sequence, x in parts:
            self.lengths[sequence] += x.shape[0]
            while len(self.tables[sequence]) * BLOCK_SIZE < self.lengths[sequence]:
                self.tables[sequence].append(self.free.pop())
        tables = [self.tables[s] for s, _ in parts]
        queries = [x.shape[0] for _, x in parts]
        batch = AttentionBatch.build(tables, [self.lengths[s] for s, _ in parts], queries, BLOCK_SIZE)
        hidden = self.decode(torch.cat([x for _, x in parts]), self.weights, batch, self.pool)
        return list(hidden.split(queries))

    def in_chunks(self, x: Tensor, size: int) -> Tensor:
        """All of one new sequence, ``size`` tokens a step."""
        sequence = self.add()
        return torch.cat([self.step([(sequence, part)])[0] for part in x.split(size)])

    def kv(self, sequence: int) -> list[Tensor]:
        """Keys and values of a sequence, all layers, in plain order."""
        blocks = torch.tensor(self.tables[sequence])
        parts = [gather(self.pool, layer, HEADS.head_dim, blocks) for layer in range(LAYERS)]
        return [t[: self.lengths[sequence]] for pair in parts for t in pair]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit; NaN equals nothing here, since none may appear."""
    return bool(torch.isfinite(a).all()) and torch.equal(a.view(torch.int16), b.view(torch.int16))
