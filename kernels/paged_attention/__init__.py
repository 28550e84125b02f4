"""Causal attention over block tables (Kwon et al., 2023, https://arxiv.org/abs/2309.06180), for decode and prefill."""

from __future__ import annotations

from torch import Tensor

from ..attention_batch import AttentionBatch
from ..cuda_config import config_of
from . import reference


def paged_attention(q: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch, scale: float) -> Tensor:
    """Attention of ``q`` [T, Hq, D] float32 over its sequences' KV; a new tensor [T, Hq * D] float32.

    Grouped heads: query head h reads key head ``h // (Hq / Hkv)``. A row sees the tokens up to its own position, all
    of which must be in the pool already. A row's bits depend on its q and its own context alone.
    """
    if q.is_cuda:
        from . import triton as on_gpu

        return on_gpu.paged_attention(q, kv_pool, layer, batch, scale, config_of(q.device))
    return reference.paged_attention(q, kv_pool, layer, batch, scale)
