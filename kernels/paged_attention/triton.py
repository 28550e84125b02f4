"""Attention over block tables on a GPU: `decode` splits a context over programs, `extend` gives a tile of rows to each.

Both pack the query heads that share a key head into one tile, and walk the keys with an online softmax.

In deterministic mode both use one tile and start the softmax anew after each `split_keys` keys, merging in order, and
products and sums are not contracted: a row then goes through the same operations in either kernel, whatever else is
in the batch and however it was chunked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..cuda_config import CudaConfig
from .attention_shape import AttentionShape
from .decode import run_decode
from .extend import run_extend

_LOG2_E = 1.4426950408889634


def paged_attention(
    q: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch, scale: float, config: CudaConfig
) -> Tensor:
    """As the wrapper, on a pool in plain order. Sequences that the batch calls short are decoded, others extended."""
    tokens, num_heads, head_dim = q.shape
    shape = AttentionShape(num_heads, kv_pool.shape[3], head_dim, kv_pool.shape[-1] // head_dim, scale * _LOG2_E)
    out = torch.empty(tokens, num_heads * head_dim, dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    q = q.contiguous()
    short, rows_each = batch.num_short, batch.max_short_len
    if tokens == batch.num_sequences and not short:
        short, rows_each = batch.num_sequences, 1
    if short:
        run_decode(q, kv_pool, layer, batch, shape, out, config, short, rows_each)
    if short < batch.num_sequences:
        run_extend(q, kv_pool, layer, batch, shape, out, config, short)
    return out
