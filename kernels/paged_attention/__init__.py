"""Causal attention over block tables (Kwon et al., 2023, https://arxiv.org/abs/2309.06180), for decode and prefill."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
from ..backend import cpu_library
from ..cpu.library import AttentionArgs, BatchArgs, HeadsArgs, KvLayerArgs, pointer
from ..cuda_config import config_of
from . import reference

COLUMNS = 32  # the C++ kernel takes head dimensions that are a multiple of this


def paged_attention(q: Tensor, kv_pool: Tensor, layer: int, batch: AttentionBatch, scale: float) -> Tensor:
    """Attention of ``q`` [T, Hq, D] float32 over its sequences' KV; a new tensor [T, Hq * D] float32.

    Grouped heads: query head h reads key head ``h // (Hq / Hkv)``. A row sees the tokens up to its own position, all
    of which must be in the pool already. A row's bits depend on its q and its own context alone.
    """
    if q.is_cuda:
        from . import triton as on_gpu

        return on_gpu.paged_attention(q, kv_pool, layer, batch, scale, config_of(q.device))
    num_tokens, num_heads, head_dim = q.shape
    library = None if head_dim % COLUMNS else cpu_library(q.device)
    if library is None:
        return reference.paged_attention(q, kv_pool, layer, batch, scale)
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=torch.float32)
    args = AttentionArgs(pointer(q), pointer(out), HeadsArgs(num_heads, kv_pool.shape[3], head_dim), scale)
    library.call("sessile_paged_attention", args, BatchArgs.of(batch), KvLayerArgs.of(kv_pool, layer, head_dim))
    return out
