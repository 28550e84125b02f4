"""The parts of sampling that read whole rows of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backend import cpu_library
from ..cpu.library import pointer
from . import filters, reference
from .filters import RowSampling

__all__ = ["RowSampling", "argmax", "sample", "top_k", "verify_drafts"]


def argmax(logits: Tensor) -> Tensor:
    """Index of the largest of each row of ``logits`` [R, V]; of equal ones the smallest index. New tensor [R] int64."""
    if logits.is_cuda:
        from . import triton as on_gpu

        return on_gpu.argmax(logits)
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


def sample(logits: Tensor, rows: RowSampling) -> Tensor:
    """The next token of each row of ``logits`` [R, V]; a new tensor [R] int64.

    Temperature, then top-k, then top-p over what top-k left (Holtzman et al., 2019), then min-p relative to the
    likeliest (Nguyen et al., 2024); of what is left the first token, in order of ids, at which the sum of
    probabilities passes ``uniform`` times their whole. Logits equal to the last one kept are kept too. A row's token
    depends on its logits and parameters alone.
    """
    if logits.is_cuda:
        from . import triton as on_gpu

        return on_gpu.sample(logits, rows)
    return filters.sample(logits, rows)


def verify_drafts(sampled: Tensor, token_ids: Tensor, query_start: Tensor, max_len: int) -> Tensor:
    """How many drafts of each sequence are right: a new tensor [S] int32.

    ``token_ids`` [R] int64 were computed, each sequence's first one known and the rest drafted; ``sampled`` [R] int64
    are the tokens drawn at each row, ``query_start`` [S + 1] int32 the sequences' first rows, of which each has at most
    ``max_len``. Drafts that say one token with certainty are accepted by rejection sampling (Leviathan et al., 2023)
    with just the target's probability of that token, which is how often an independent draw equals it: so drawing each
    row as if there were no draft, and keeping drafts while they agree, has the target's distribution, and gives the
    same tokens as without drafts.
    """
    if sampled.is_cuda:
        from . import triton as on_gpu

        return on_gpu.verify_drafts(sampled, token_ids, query_start, max_len)
    return filters.verify_drafts(sampled, token_ids, query_start)
