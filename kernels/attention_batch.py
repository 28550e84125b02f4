"""Which rows of a step belong to which sequence, and where their KV lies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """A ragged batch of ``S`` sequences with ``T`` new tokens together, on the model's device, contiguous.

    Built once a step. The rows of a sequence are neighbours, in order of position.
    """

    positions: Tensor  # [T] int32: position of each token in its sequence
    slot_mapping: Tensor  # [T] int64: block * block_size + offset, where the token's KV goes
    block_tables: Tensor  # [S, max_blocks] int32: a sequence's blocks in order; what lies past its context is not read
    query_start: Tensor  # [S + 1] int32: first row of each sequence; the last entry is T
    context_lens: Tensor  # [S] int32: tokens of the sequence, this step's included
    # What the host knows of the rows, so that a GPU's launches need not ask: the first ``num_short`` sequences have at
    # most ``max_short_len`` rows each (decodes and drafts). Always right, if not useful, is none.
    num_short: int = 0
    max_short_len: int = 1

    def __post_init__(self) -> None:
        wanted = (torch.int32, torch.int64, torch.int32, torch.int32, torch.int32)
        tensors = (self.positions, self.slot_mapping, self.block_tables, self.query_start, self.context_lens)
        for tensor, dtype in zip(tensors, wanted, strict=True):
            if tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(f"expected a contiguous tensor of {dtype}, got {tensor.dtype}")
        if self.block_tables.dim() != 2 or self.query_start.numel() != self.num_sequences + 1:
            raise ValueError("block_tables must be [S, max_blocks] and query_start [S + 1]")

    @property
    def num_tokens(self) -> int:
        return self.positions.numel()

    @property
    def num_sequences(self) -> int:
        return self.context_lens.numel()

    @classmethod
    def build(
        cls,
        block_tables: list[list[int]],
        context_lens: list[int],
        query_lens: list[int],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> AttentionBatch:
        """From plain lists: for each sequence its blocks, its tokens with this step's, and how many are this step's."""
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for table, context, query in zip(block_tables, context_lens, query_lens, strict=True):
            new = range(context - query, context)
            positions.extend(new)
            slots.extend(table[p // block_size] * block_size + p % block_size for p in new)
            starts.append(starts[-1] + query)
        width = max((len(table) for table in block_tables), default=0)
        padded = [table + [0] * (width - len(table)) for table in block_tables]
        return cls(
            torch.tensor(positions, dtype=torch.int32, device=device),
            torch.tensor(slots, dtype=torch.int64, device=device),
            torch.tensor(padded, dtype=torch.int32, device=device).reshape(len(block_tables), width),
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(context_lens, dtype=torch.int32, device=device),
            num_short=leading_decodes(query_lens),
        )


def leading_decodes(query_lens: Iterable[int]) -> int:
    """How many sequences at the front of the batch have one row."""
    return sum(1 for _ in itertools.takewhile(lambda length: length == 1, query_lens))
