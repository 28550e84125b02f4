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
    ROWS = "rows"  # plain [N, K] float32, for the torch path


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
        return self.storage


def pack(weight: Weight, *, device: torch.device | str = "cpu") -> PackedLinear:
    """Packs ``weight`` for the implementation that serves ``device``. Dense float32 stays float32; other dense
    dtypes become bfloat16; int8 and int4 stay as they are where kernels read them."""
    rows, columns = weight.shape
    exact = isinstance(weight, DenseWeight) and weight.tensor.dtype == torch.float32
    dense = weight.dequantise(torch.float32 if exact else torch.bfloat16).float().to(device).contiguous()
    return PackedLinear(WeightForm.ROWS, rows, columns, dense)
