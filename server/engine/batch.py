"""The tensors of one step, made from its plan.

Python's work here grows with the tokens and turns of the step, not with the length of their contexts: each running turn
has a row in a table of blocks that is written once a block.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.attention_batch import AttentionBatch, leading_decodes
from .sampler import SampleRow
from .scheduler import Chunk, StepPlan
from .sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class StepArrays:
    """What the model computes in one step, on the host; the fields are those of AttentionBatch, and of the step."""

    token_ids: npt.NDArray[np.int64]  # [num_tokens]
    positions: npt.NDArray[np.int32]
    slot_mapping: npt.NDArray[np.int64]
    block_tables: npt.NDArray[np.int32]
    query_start: npt.NDArray[np.int32]
    context_lens: npt.NDArray[np.int32]
    logits_rows: npt.NDArray[np.int64]  # [len(rows)]: rows of the tokens whose logits are wanted
    rows: list[SampleRow]  # what is sampled from these: of each turn that gets tokens its own row, then its drafts'

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    @property
    def query_lens(self) -> list[int]:
        lens: list[int] = np.diff(self.query_start).tolist()
        return lens


@dataclasses.dataclass(frozen=True, slots=True)
class StepBatch:
    """The same as tensors on the model's device."""

    token_ids: torch.Tensor  # [num_tokens] int64
    attention: AttentionBatch
    logits_rows: torch.Tensor  # [len(rows)] int64: rows of the tokens whose logits are wanted


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

    def forget_from(self, sequence: Sequence, block: int) -> None:
        """From its block number ``block`` on ``sequence`` has other blocks now, or none."""
        if sequence in self._written:
            self._written[sequence] = min(self._written[sequence], block)

    def forget(self, sequence: Sequence) -> None:
        """Free the row of a turn that ended or was preempted; harmless if it has none."""
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            del self._written[sequence]
            self._free.append(slot)

    def gather(self, rows: list[int], num_blocks: int) -> npt.NDArray[np.int32]:
        """[len(rows), num_blocks] int32."""
        return self._table[rows, :num_blocks]


def build_arrays(plan: StepPlan, tables: BlockTables, block_size: int) -> StepArrays:
    """Make the arrays of ``plan``."""
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
    block_tables = tables.gather(rows, max_blocks)  # a copy
    for index, chunk in enumerate(chunks):
        if chunk.blocks:
            first = chunk.start // block_size
            block_tables[index, first : first + len(chunk.blocks)] = chunk.blocks
    slots = block_tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    token_ids = np.concatenate([_token_ids(chunk) for chunk in chunks])
    wanted = [np.arange(end - chunk.num_rows, end) for chunk, end in zip(chunks, query_start[1:], strict=True)]
    return StepArrays(
        token_ids=token_ids.astype(np.int64),
        positions=positions,
        slot_mapping=slots,
        block_tables=block_tables,
        query_start=query_start,
        context_lens=starts + counts,
        logits_rows=np.concatenate(wanted).astype(np.int64),
        rows=[
            SampleRow(chunk.sequence, chunk.drafts[:drafted], int(chunk.awaits_token))
            for chunk in chunks
            for drafted in range(chunk.num_rows)
        ],
    )


def _token_ids(chunk: Chunk) -> npt.NDArray[np.int32]:
    """[num_tokens]; 0 for one that is awaited"""
    if chunk.awaits_token:
        return np.zeros(1, dtype=np.int32)
    own = chunk.sequence.token_ids[chunk.start : chunk.start + chunk.num_own_tokens]
    return np.concatenate([own, np.array(chunk.drafts, dtype=np.int32)]) if chunk.drafts else own


def to_device(arrays: StepArrays, device: torch.device) -> StepBatch:
    """The tensors of ``arrays``."""

    def put(array: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return StepBatch(
        token_ids=put(arrays.token_ids),
        attention=AttentionBatch(
            positions=put(arrays.positions),
            slot_mapping=put(arrays.slot_mapping),
            block_tables=put(arrays.block_tables),
            query_start=put(arrays.query_start),
            context_lens=put(arrays.context_lens),
            num_short=leading_decodes(arrays.query_lens),
        ),
        logits_rows=put(arrays.logits_rows),
    )
