"""Embedding rows in plain torch."""

from __future__ import annotations

from torch import Tensor


def embedding(token_ids: Tensor, table: Tensor) -> Tensor:
    return table[token_ids].float()
