"""One call of every kernel for each of the shapes that models have, small enough to set up on a CPU.

What a kernel is compiled for are its constants (heads, head sizes, tiles, forms of weights), the types of its
arguments, and whether sizes are multiples of 16; numbers of tokens and blocks are arguments and need not be large.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from .attention_batch import AttentionBatch
from .cuda_config import CudaConfig
from .kv_copy import triton as kv_copy
from .kv_layout import KVLayout, KVOrder
from .linear import DenseWeight, Fp8Weight, Int4Weight, Int8Weight, Weight
from .linear import triton as linear
from .linear.packed import PackedLinear
from .linear.rows import pack_rows
from .moe import Experts
from .moe import triton as moe
from .paged_attention import triton as attention
from .rms_norm import triton as rms_norm
from .rotary import Heads, QKNorm, cos_sin_table
from .rotary import triton as rotary
from .sampling import RowSampling
from .sampling import triton as sampling
from .silu_mul import triton as silu_mul

LLAMA_8B, SMOLLM2, QWEN3_MOE = Heads(32, 8, 128), Heads(9, 3, 64), Heads(32, 4, 128)
BLOCK_SIZE = 16


def run_all(config: CudaConfig) -> None:
    """Launch everything once, on CPU tensors: only where launches are recorded."""
    _run_elementwise()
    unsplit, split, chunk = _batch([1] * 512, 1), _batch([1] * 16, 512), _batch([16], 512)
    _run_attention(config, LLAMA_8B, torch.bfloat16, [unsplit, split, chunk])
    if not config.is_deterministic:
        _run_attention(config, SMOLLM2, torch.bfloat16, [split, chunk])
        drafts = dataclasses.replace(_batch([4] * 16, 512), num_short=16, max_short_len=4)
        _run_attention(config, QWEN3_MOE, torch.bfloat16, [drafts])
    _run_attention(config, LLAMA_8B, torch.float32, [_batch([1] * 16, 512), _batch([16], 512)])
    _run_copies()
    _run_sampling()
    _run_linear(config)
    _run_experts(config)


def _run_elementwise() -> None:
    for width in (576, 4096, 8192):
        x, weight = torch.zeros(2, width, dtype=torch.bfloat16), torch.zeros(width)
        rms_norm.rms_norm(x, weight, 1e-5)
        rms_norm.add_rms_norm(x, x, weight, 1e-5)
    silu_mul.silu_mul(torch.zeros(2, 2 * 1536, dtype=torch.bfloat16))


def _run_attention(config: CudaConfig, heads: Heads, dtype: torch.dtype, batches: list[AttentionBatch]) -> None:
    layout = KVLayout(1, heads.num_kv_heads, heads.head_dim, BLOCK_SIZE, dtype, KVOrder.PLAIN)
    pool = layout.allocate(1)
    cos_sin = cos_sin_table(torch.ones(heads.head_dim // 2), 16)
    norm = QKNorm(torch.zeros(heads.head_dim), torch.zeros(heads.head_dim), 1e-6)
    for batch in batches:
        tokens = batch.num_tokens
        qkv = torch.zeros(tokens, heads.row_width, dtype=dtype)
        rotary.rotary_kv_write(qkv, cos_sin, batch, pool, 0, heads, norm if heads == QWEN3_MOE else None)
        q = torch.zeros(tokens, heads.num_heads, heads.head_dim, dtype=dtype)
        attention.paged_attention(q, pool, 0, batch, 0.1, config)


def _batch(query_lens: list[int], width: int) -> AttentionBatch:
    tables = [[0] * width for _ in query_lens]
    return AttentionBatch.build(tables, [16 * width] * len(query_lens), query_lens, BLOCK_SIZE)


def _run_copies() -> None:
    pool = KVLayout(1, 8, 128, BLOCK_SIZE, torch.bfloat16, KVOrder.PLAIN).allocate(2)
    blocks = torch.zeros(1, dtype=torch.int64)
    kv_copy.copy_blocks(pool, blocks, blocks)
    kv_copy.gather_blocks(pool, blocks, pool)
    kv_copy.scatter_blocks(pool, pool, blocks)
    kv_copy.copy_block_prefix(pool, 0, 1, 7, 128)


def _run_sampling() -> None:
    logits = torch.zeros(2, 4096)
    one = torch.ones(2)
    sampling.argmax(logits)
    sampling.sample(logits, RowSampling(one, torch.ones(2, dtype=torch.int32), one, one, one))
    ids = torch.zeros(4, dtype=torch.int64)
    sampling.verify_drafts(ids, ids, torch.tensor([0, 4], dtype=torch.int32), 4)


def _weights(columns: int, width: int) -> Iterator[Weight]:
    groups = torch.ones(columns, width // 32)
    yield DenseWeight(torch.zeros(columns, width, dtype=torch.bfloat16))
    yield Int8Weight(torch.zeros(columns, width, dtype=torch.int8), groups)
    yield Int4Weight(torch.zeros(columns, width, dtype=torch.uint8), groups, groups)
    yield Fp8Weight(torch.zeros(columns, width).to(torch.float8_e4m3fn), torch.ones(columns))


def _run_linear(config: CudaConfig) -> None:
    for width in (512, 576):  # the second is no multiple of a tile's depth
        for weight in _weights(64, width):
            if width == 576 and not isinstance(weight, DenseWeight):
                continue
            packed = pack_rows(weight, "cpu")
            if not config.is_deterministic:
                linear.dequantise(packed)
                linear.dequantise(packed, torch.zeros(1, dtype=torch.int64))
            if config.is_deterministic or width == 512:
                _run_wide(config, packed)
            if not config.is_deterministic:
                _run_skinny(config, packed)
    if config.is_deterministic:
        packed = pack_rows(DenseWeight(torch.zeros(64, 512)), "cpu")
        linear.run_linear(torch.zeros(16, 512), packed, None, None, torch.float32, config.wide)


def _run_skinny(config: CudaConfig, packed: PackedLinear) -> None:
    x, residual = _activations(packed.in_features), _activations(packed.out_features)
    norm = torch.zeros(packed.in_features)
    linear.run_linear(x, packed, None, residual, torch.bfloat16, linear.skinny_tile(packed, config))
    linear.norm_linear(x, norm, 1e-5, packed, None, config)
    linear.gated_linear(x, norm, 1e-5, packed, config)


def _run_wide(config: CudaConfig, packed: PackedLinear) -> None:
    linear.run_linear(_activations(packed.in_features), packed, None, None, torch.bfloat16, config.wide)


def _activations(width: int) -> Tensor:
    return torch.zeros(2, width, dtype=torch.bfloat16)


def _run_experts(config: CudaConfig) -> None:
    experts, hidden, inner = 128, 256, 192
    for up, down in zip(_weights(2 * inner, hidden), _weights(hidden, inner), strict=True):
        packed = pack_rows(up, "cpu"), pack_rows(down, "cpu")
        layer = Experts([packed[0]] * experts, [packed[1]] * experts, 8, True)
        for tokens in (1, 512) if not isinstance(up, Int8Weight | Fp8Weight) else (1,):
            x = torch.zeros(tokens, hidden, dtype=torch.bfloat16)
            moe.moe_mlp(x, torch.zeros(tokens, experts), layer, config)
