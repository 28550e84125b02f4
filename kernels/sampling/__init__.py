"""The parts of sampling that read whole rows of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backend import cpu_library
from ..cpu.library import pointer
from . import reference


def argmax(logits: Tensor) -> Tensor:
    """Index of the largest of each row of ``logits`` [R, V]; of equal ones the smallest index. New tensor [R] int64."""
    library = cpu_library(logits.device)
    if library is None:
        return reference.argmax(logits)
    rows, width = logits.shape
    out = torch.empty(rows, dtype=torch.int64)
    library.call("sessile_argmax", pointer(logits), rows, width, pointer(out, torch.int64))
    return out


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row of ``logits`` [R, V], largest first, of equal ones the smaller index first:
    values [R, k] and ids [R, k] int64."""
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k must be in 1..{logits.shape[-1]}, not {k}")
    library = cpu_library(logits.device)
    if library is None:
        return reference.top_k(logits, k)
    rows, width = logits.shape
    values, ids = torch.empty(rows, k, dtype=torch.float32), torch.empty(rows, k, dtype=torch.int64)
    library.call("sessile_top_k", pointer(logits), rows, width, k, pointer(values), pointer(ids, torch.int64))
    return values, ids
