"""Causal attention over block tables (Kwon et al., 2023, https://arxiv.org/abs/2309.06180), for decode and prefill."""

from __future__ import annotations

from torch import Tensor

from ..attention_batch import AttentionBatch
from . import reference


def paged_attention(q: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch, scale: float) -> Tensor:
    """Attention of ``q`` [T, Hq, D] float32 over its sequences' KV; a new tensor [T, Hq * D] float32.

    Grouped heads: query head h reads key head ``h // (Hq / Hkv)``. A row sees the tokens up to its own position, all
    of which must be in the pool already. A row's bits depend on its q and its own context alone.
    """
    return reference.paged_attention(q, kv_pool, layer, batch, scale)
