"""A linear layer's weight in the form that the serving implementation reads."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import Tensor

from .weights import DenseWeight, Weight


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


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [out_features, in_features], packed once at load. ``storage`` is its only copy in memory."""

    form: WeightForm
    out_features: int
    in_features: int
    storage: Tensor

    @property
    def num_bytes(self) -> int:
        return self.storage.numel() * self.storage.element_size()

    def dequantise(self) -> Tensor:
        """The weight's values as [out_features, in_features] float32, a new tensor or the storage itself."""
        if self.form in (WeightForm.INT8_ROWS, WeightForm.INT4_ROWS, WeightForm.FP8_ROWS) or self.storage.is_cuda:
            from .rows import dequantise_rows  # it builds on this module

            return dequantise_rows(self).float()
        return self.storage


def pack(weight: Weight, *, device: torch.device | str = "cpu") -> PackedLinear:
    """Packs ``weight`` for the implementation that serves ``device``. Dense float32 stays float32; other dense
    dtypes become bfloat16; int8 and int4 stay as they are where kernels read them."""
    if torch.device(device).type == "cuda":
        from .rows import pack_rows  # it builds on this module

        return pack_rows(weight, device)
    num_rows, columns = weight.shape
    exact = isinstance(weight, DenseWeight) and weight.tensor.dtype == torch.float32
    dense = weight.dequantise(torch.float32 if exact else torch.bfloat16).float().to(device).contiguous()
    return PackedLinear(WeightForm.ROWS, num_rows, columns, dense)
