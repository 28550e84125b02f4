"""A linear layer's weight in the form that the serving implementation reads.

For the C++ kernels a weight [N, K] is cut into blocks of 32 rows (the last one filled with zeros), each one run of
bytes with K outermost; ``weights.h`` says where each value lies. For plain torch it stays [N, K] float32.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..backend import cpu_library
from ..cpu.library import PackedWeightArgs
from .weights import GROUP, DenseWeight, Int4Weight, Int8Weight, Weight

_ROWS = 32  # of a block


class WeightForm(enum.IntEnum):
    """What the bytes of a packed weight are; the numbers are those of ``weights.h``."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    ROWS = 4  # plain [N, K] float32, for torch


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [out_features, in_features], packed once at load. ``storage`` is its only copy in memory."""

    form: WeightForm
    out_features: int
    in_features: int
    storage: Tensor
    args: PackedWeightArgs = field(init=False, repr=False, compare=False)  # the same for C++

    def __post_init__(self) -> None:
        arguments = (self.storage.data_ptr(), self.out_features, self.in_features, int(self.form), 0)
        object.__setattr__(self, "args", PackedWeightArgs(*arguments))

    @property
    def num_bytes(self) -> int:
        return self.storage.numel() * self.storage.element_size()


def pack(weight: Weight, *, device: torch.device | str = "cpu") -> PackedLinear:
    """Packs ``weight`` for the implementation that serves ``device``.

    Dense float32 stays float32; other dense dtypes become bfloat16; int8 and int4 stay what they are where the C++
    kernels serve, and become float32 copies of their bfloat16 values elsewhere (also where K is no multiple of 32).
    """
    rows, columns = weight.shape
    if cpu_library(torch.device(device)) is None or columns % GROUP:
        return PackedLinear(WeightForm.ROWS, rows, columns, _as_rows(weight).to(device))
    form, storage = _blocks(weight, columns)
    return PackedLinear(form, rows, columns, storage)


def _as_rows(weight: Weight) -> Tensor:
    exact = isinstance(weight, DenseWeight) and weight.tensor.dtype == torch.float32
    return weight.dequantise(torch.float32 if exact else torch.bfloat16).float().contiguous()


def _blocks(weight: Weight, columns: int) -> tuple[WeightForm, Tensor]:
    if isinstance(weight, Int8Weight):
        return WeightForm.INT8, _int8_blocks(weight)
    if isinstance(weight, Int4Weight):
        return WeightForm.INT4, _int4_blocks(weight)
    if weight.tensor.dtype == torch.float32:
        return WeightForm.FLOAT32, _cut(weight.tensor).transpose(1, 2).contiguous()
    pairs = _cut(weight.dequantise(torch.bfloat16)).view(-1, _ROWS, columns // 2, 2)
    return WeightForm.BFLOAT16, pairs.transpose(1, 2).contiguous()


def _int8_blocks(weight: Int8Weight) -> Tensor:
    unsigned = _cut((weight.q.to(torch.int16) + 128).to(torch.uint8))
    words = unsigned.view(-1, _ROWS, unsigned.shape[2] // GROUP, 8, 4)  # 8 words of 4 bytes
    values = words.permute(0, 2, 3, 1, 4).flatten(2)
    return torch.cat([values, _scales(weight.scale)], dim=2).contiguous()


def _int4_blocks(weight: Int4Weight) -> Tensor:
    rows = _cut(weight.q)
    q = rows.view(-1, _ROWS, rows.shape[2] // GROUP, 4, 4, 2)  # 4 words of 4 bytes of 2 nibbles
    words = q[..., 0] | q[..., 1] << 4
    values = words.permute(0, 2, 3, 1, 4).flatten(2)
    return torch.cat([values, _scales(weight.scale), _scales(weight.minimum)], dim=2).contiguous()


def _cut(rows: Tensor) -> Tensor:
    """[N, X] to [N / 32, 32, X], the last block filled with zeros."""
    missing = -rows.shape[0] % _ROWS
    return pad(rows, (0, 0, 0, missing)).view(-1, _ROWS, rows.shape[1])


def _scales(scale: Tensor) -> Tensor:
    """Scales [N, K / 32] float16 as bytes [N / 32, K / 32, 64]."""
    return _cut(scale).transpose(1, 2).contiguous().view(torch.uint8)
