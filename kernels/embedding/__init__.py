"""Rows of an embedding table, which may be the tied output layer's packed weight: it stands once in memory."""

from __future__ import annotations

from torch import Tensor

from ..linear import PackedLinear
from ..linear.rows import dequantise_rows
from . import reference


def embedding(token_ids: Tensor, table: PackedLinear) -> Tensor:
    """Rows ``token_ids`` [T] int64 of ``table`` [V, H]; a new tensor [T, H] float32.

    Raises: IndexError for an id outside the vocabulary.
    """
    if token_ids.is_cuda:
        return dequantise_rows(table, token_ids)
    return reference.embedding(token_ids, table.dequantise())
