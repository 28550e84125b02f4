"""The parts of sampling that read whole rows of logits."""

from __future__ import annotations

from torch import Tensor

from . import reference


def argmax(logits: Tensor) -> Tensor:
    """Index of the largest of each row of ``logits`` [R, V]; of equal ones the smallest index. New tensor [R] int64."""
    return reference.argmax(logits)


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row of ``logits`` [R, V], largest first, of equal ones the smaller index first:
    values [R, k] and ids [R, k] int64."""
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k must be in 1..{logits.shape[-1]}, not {k}")
    return reference.top_k(logits, k)
