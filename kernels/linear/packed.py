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


class WeightForm(enum.StrEnum):
    """What the bytes of a packed weight are."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"
    ROWS = "rows"  # plain [N, K], for the torch path (float32) and for GPUs
    INT8_ROWS = "int8_rows"  # for GPUs: see rows.py
    INT4_ROWS = "int4_rows"
    FP8_ROWS = "fp8_rows"


_IN_BLOCKS = {WeightForm.FLOAT32: 0, WeightForm.BFLOAT16: 1, WeightForm.INT8: 2, WeightForm.INT4: 3}  # as in weights.h


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [out_features, in_features], packed once at load. ``storage`` is its only copy in memory."""

    form: WeightForm
    out_features: int
    in_features: int
    storage: Tensor
    args: PackedWeightArgs = field(init=False, repr=False, compare=False)  # the same for C++

    def __post_init__(self) -> None:
        arguments = (self.storage.data_ptr(), self.out_features, self.in_features, _IN_BLOCKS.get(self.form, -1), 0)
        object.__setattr__(self, "args", PackedWeightArgs(*arguments))

    @property
    def in_blocks(self) -> bool:
        """Whether this is one of the forms that the C++ kernels read."""
        return self.form in _IN_BLOCKS

    @property
    def num_bytes(self) -> int:
        return self.storage.numel() * self.storage.element_size()

    def dequantise(self) -> Tensor:
        """The weight's values as [out_features, in_features] float32, a new tensor or the storage itself."""
        if self.in_blocks:
            return _read_blocks(self)
        if self.form is not WeightForm.ROWS or self.storage.is_cuda:
            from .rows import dequantise_rows  # it builds on this module

            return dequantise_rows(self).float()
        return self.storage


def pack(weight: Weight, *, device: torch.device | str = "cpu") -> PackedLinear:
    """Packs ``weight`` for the implementation that serves ``device``.

    Dense float32 stays float32; other dense dtypes become bfloat16; int8 and int4 stay what they are where the C++
    kernels serve, and become float32 copies of their bfloat16 values elsewhere (also where K is no multiple of 32).
    """
    if torch.device(device).type == "cuda":
        from .rows import pack_rows  # it builds on this module

        return pack_rows(weight, device)
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
    if isinstance(weight, DenseWeight) and weight.tensor.dtype == torch.float32:
        return WeightForm.FLOAT32, _cut(weight.tensor).transpose(1, 2).contiguous()
    pairs = _cut(weight.dequantise(torch.bfloat16)).view(-1, _ROWS, columns // 2, 2)
    return WeightForm.BFLOAT16, pairs.transpose(1, 2).contiguous()


def _read_blocks(packed: PackedLinear) -> Tensor:
    library = cpu_library(torch.device("cpu"))
    if library is None:
        raise RuntimeError("this weight was packed for the C++ kernels, which are no longer there")
    ids = torch.arange(packed.out_features)
    out = torch.empty(packed.out_features, packed.in_features, dtype=torch.float32)
    library.call("sessile_embedding", packed.args, ids.data_ptr(), ids.numel(), out.data_ptr())
    return out


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
