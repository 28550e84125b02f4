"""Causal attention over block tables in plain torch, float32, one sequence after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..kv_layout import gather


def paged_attention(q: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch, scale: float) -> Tensor:
    num_tokens, num_heads, head_dim = q.shape
    block_size = kv_pool.shape[-1] // head_dim
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=torch.float32, device=q.device)
    starts = batch.query_start.tolist()
    for i, context in enumerate(batch.context_lens.tolist()):
        rows = slice(starts[i], starts[i + 1])
        blocks = batch.block_tables[i, : (context + block_size - 1) // block_size].long()
        keys, values = (t[:context].float() for t in gather(kv_pool, layer, head_dim, blocks))
        out[rows] = _one_sequence(q[rows].float(), keys, values, batch.positions[rows], scale).flatten(1)
    return out


def _one_sequence(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float) -> Tensor:
    """``q`` [t, Hq, D] over ``keys`` and ``values`` [context, Hkv, D]; a row sees keys up to its own position."""
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    hidden = torch.arange(keys.shape[0], device=q.device) > positions.unsqueeze(1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
