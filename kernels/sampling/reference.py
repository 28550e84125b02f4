"""Argmax and top-k in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(logits: Tensor) -> Tensor:
    # torch.argmax does not say which of equal values it takes; the first that equals the maximum is well defined.
    return (logits == logits.amax(dim=-1, keepdim=True)).to(torch.uint8).argmax(dim=-1)


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :k]
    return logits.gather(-1, ids), ids
