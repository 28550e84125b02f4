"""The inputs of a step on the GPU: written once a step in pinned memory, moved in one copy.

Two pinned slots take turns, so that a step can be written while the one before it is still being copied. Every graph
reads the same tensors on the device, each from the front.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....kernels.attention_batch import AttentionBatch
from ..batch import StepArrays
from .buckets import Bucket
from .interface import DeviceInterface
from .upload import Upload, padded

_NOT_WRITTEN = -1  # slot of a row that no sequence has: kernels write nothing for it
_FROM_HOST = -1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest step."""

    rows: int
    sequences: int
    blocks: int  # of one sequence


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Views of one buffer, on the device or on the host."""

    token_ids: Tensor  # [rows] int64
    slot_mapping: Tensor  # [rows] int64
    logits_rows: Tensor  # [rows] int64
    previous: Tensor  # [rows] int64: the row of the step before whose sampled token this row computes; -1: token_ids
    positions: Tensor  # [rows] int32
    query_start: Tensor  # [sequences + 1] int32
    context_lens: Tensor  # [sequences] int32
    block_tables: Tensor  # [sequences * blocks] int32, as wide as the step needs

    @classmethod
    def over(cls, buffer: Tensor, sizes: Sizes) -> StepTensors:
        """The views of ``buffer`` [num_bytes] uint8."""
        parts, at = [], 0
        for count, dtype in _parts(sizes):
            parts.append(buffer[at : at + count * dtype.itemsize].view(dtype))
            at += padded(count * dtype.itemsize)
        return cls(*parts)

    @staticmethod
    def num_bytes(sizes: Sizes) -> int:
        return sum(padded(count * dtype.itemsize) for count, dtype in _parts(sizes))


def _parts(sizes: Sizes) -> list[tuple[int, torch.dtype]]:
    wide = [(sizes.rows, torch.int64)] * 4
    narrow = [sizes.rows, sizes.sequences + 1, sizes.sequences, sizes.sequences * sizes.blocks]
    return wide + [(count, torch.int32) for count in narrow]


class StepBuffers:
    """Alone owns the input buffers. ``device_tensors`` are what graphs read."""

    def __init__(self, device: DeviceInterface, sizes: Sizes) -> None:
        self._sizes = sizes
        self._num_bytes = StepTensors.num_bytes(sizes)
        self._upload = Upload(device, self._num_bytes)
        self._host = [StepTensors.over(pinned, sizes) for pinned in self._upload.pinned]
        self.device_tensors = StepTensors.over(self._upload.on_device, sizes)

    def write(self, arrays: StepArrays, bucket: Bucket, previous: npt.NDArray[np.int64] | None = None) -> None:
        """Write a step, padded to ``bucket``, and put its copy in the stream.

        ``previous`` [num_tokens]: which row of the step before gave the token, -1 where ``token_ids`` has it.
        """
        _fill(self._host[self._upload.next()], arrays, bucket, self.width_of(bucket), previous)
        last = self._sizes.sequences - bucket.num_sequences  # rows at the end of the last part, the tables
        self._upload.send(self._num_bytes - last * self.width_of(bucket) * torch.int32.itemsize)

    def width_of(self, bucket: Bucket) -> int:
        """Blocks in a row of the tables: all that a sequence can have, so that a graph does for every length."""
        return self._sizes.blocks

    def batch(self, bucket: Bucket) -> AttentionBatch:
        """The attention's tensors of a step of ``bucket``, views of the buffers."""
        tensors, sequences, width = self.device_tensors, bucket.num_sequences, self.width_of(bucket)
        return AttentionBatch(
            positions=tensors.positions[: bucket.num_rows],
            slot_mapping=tensors.slot_mapping[: bucket.num_rows],
            block_tables=tensors.block_tables[: sequences * width].view(sequences, width),
            query_start=tensors.query_start[: sequences + 1],
            context_lens=tensors.context_lens[:sequences],
            num_short=sequences,
            max_short_len=bucket.rows_each,
        )


def _fill(
    host: StepTensors, arrays: StepArrays, bucket: Bucket, width: int, previous: npt.NDArray[np.int64] | None
) -> None:
    tokens, sequences = len(arrays.token_ids), arrays.num_sequences
    rows = bucket.num_rows
    _padded_copy(host.token_ids, arrays.token_ids, rows, 0)
    _padded_copy(host.slot_mapping, arrays.slot_mapping, rows, _NOT_WRITTEN)
    _padded_copy(host.positions, arrays.positions, rows, 0)
    _padded_copy(host.logits_rows, arrays.logits_rows, rows, 0)
    if previous is None:
        host.previous.numpy()[:rows] = _FROM_HOST
    else:
        _padded_copy(host.previous, previous, rows, _FROM_HOST)
    # Sequences that are not there have no tokens, and no rows where drafts are verified; a row each where the rows
    # are one each, which attends to nothing.
    _padded_copy(host.context_lens, arrays.context_lens, bucket.num_sequences, 0)
    _padded_copy(host.query_start, arrays.query_start, bucket.num_sequences + 1, tokens)
    if bucket.rows_each == 1:
        host.query_start.numpy()[: bucket.num_sequences + 1] = np.arange(bucket.num_sequences + 1)
    table = host.block_tables.numpy()[: bucket.num_sequences * width].reshape(bucket.num_sequences, width)
    table[:sequences, : arrays.block_tables.shape[1]] = arrays.block_tables


def _padded_copy(
    target: Tensor, source: npt.NDArray[np.int32] | npt.NDArray[np.int64], length: int, padding: int
) -> None:
    view = target.numpy()
    view[: len(source)] = source
    view[len(source) : length] = padding
