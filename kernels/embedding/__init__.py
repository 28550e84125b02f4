"""Rows of an embedding table, which may be the tied output layer's packed weight: it stands once in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backend import cpu_library
from ..cpu.library import pointer
from ..linear import PackedLinear
from . import reference


def embedding(token_ids: Tensor, table: PackedLinear) -> Tensor:
    """Rows ``token_ids`` [T] int64 of ``table`` [V, H]; a new tensor [T, H] float32.

    Raises: IndexError for an id outside the vocabulary.
    """
    if token_ids.is_cuda:
        from ..linear.triton import dequantise

        return dequantise(table, token_ids)
    if token_ids.numel() and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < table.out_features:
        raise IndexError(f"a token id lies outside the vocabulary of {table.out_features}")
    library = cpu_library(token_ids.device) if table.in_blocks else None
    if library is None:
        return reference.embedding(token_ids, table.dequantise())
    out = torch.empty(token_ids.numel(), table.in_features, dtype=torch.float32)
    ids = pointer(token_ids, torch.int64)
    library.call("sessile_embedding", table.args, ids, token_ids.numel(), pointer(out))
    return out
