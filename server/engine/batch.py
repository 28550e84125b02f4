"""The tensors of one step, made from its plan.

Python's work here grows with the tokens and turns of the step, not with the length of their contexts: each running turn
has a row in a table of blocks that is written once a block.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.attention_batch import AttentionBatch
from .scheduler import StepPlan
from .sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class StepBatch:
    """What the model computes in one step."""

    token_ids: torch.Tensor  # [num_tokens] int64
    attention: AttentionBatch
    logits_rows: torch.Tensor  # [len(sampling)] int64: rows of the tokens whose logits are wanted
    sampling: list[Sequence]  # the turns that get their next token


class BlockTables:
    """Alone owns the rows of the block table: [max_sequences, max_blocks] int32, one row a running turn."""

    def __init__(self, max_sequences: int, max_blocks: int) -> None:
        self._table: npt.NDArray[np.int32] = np.zeros((max_sequences, max_blocks), dtype=np.int32)
        self._free = list(range(max_sequences - 1, -1, -1))
        self._slots: dict[Sequence, int] = {}
        self._written: dict[Sequence, int] = {}  # blocks of the row that are up to date

    def row(self, sequence: Sequence) -> int:
        """The row of ``sequence``, brought up to date."""
        assert sequence.held is not None
        slot = self._slots.get(sequence)
        if slot is None:
            slot = self._slots[sequence] = self._free.pop()
            self._written[sequence] = 0
        block_ids, written = sequence.held.block_ids, self._written[sequence]
        if written < len(block_ids):
            self._table[slot, written : len(block_ids)] = block_ids[written:]
            self._written[sequence] = len(block_ids)
        return slot

    def replace(self, sequence: Sequence, indices: list[int]) -> None:
        """Blocks ``indices`` of ``sequence`` are other ones now."""
        assert sequence.held is not None
        row = self._table[self._slots[sequence]]
        for index in indices:
            row[index] = sequence.held.block_ids[index]

    def forget(self, sequence: Sequence) -> None:
        """Free the row of a turn that ended or was preempted; harmless if it has none."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            del self._written[sequence]
            self._free.append(slot)

    def gather(self, rows: list[int], num_blocks: int) -> npt.NDArray[np.int32]:
        """[len(rows), num_blocks] int32."""
        return self._table[rows, :num_blocks]


def build_batch(plan: StepPlan, tables: BlockTables, block_size: int, device: torch.device) -> StepBatch:
    """Make the tensors of ``plan``."""
    chunks = plan.chunks
    counts = np.array([chunk.num_tokens for chunk in chunks], dtype=np.int32)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int32)
    query_start = np.zeros(len(chunks) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    total = int(query_start[-1])
    owner = np.repeat(np.arange(len(chunks)), counts)  # [total] the chunk of each token
    positions = np.arange(total, dtype=np.int32) - query_start[owner] + starts[owner]
    rows = [tables.row(chunk.sequence) for chunk in chunks]
    max_blocks = max(-(-(chunk.start + chunk.num_tokens) // block_size) for chunk in chunks)
    block_tables = tables.gather(rows, max_blocks)
    slots = block_tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    token_ids = np.concatenate([c.sequence.token_ids[c.start : c.start + c.num_tokens] for c in chunks])
    ending = [index for index, chunk in enumerate(chunks) if chunk.reaches_end]

    def put(array: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return StepBatch(
        token_ids=put(token_ids.astype(np.int64)),
        attention=AttentionBatch(
            positions=put(positions),
            slot_mapping=put(slots),
            block_tables=put(block_tables),
            query_start=put(query_start),
            context_lens=put(starts + counts),
        ),
        logits_rows=put(query_start[1:][ending].astype(np.int64) - 1),
        sampling=[chunks[index].sequence for index in ending],
    )
