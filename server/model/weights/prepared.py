"""Quantised weights in safetensors, under Hugging Face's names: what a GGUF model is converted to once.

A 4-bit weight ``x`` is stored as ``x.q4`` [N, K / 2] (two weights a byte, the even one in the low half), ``x.scale``
and ``x.minimum`` [N, K / 32] float16; an 8-bit one as ``x.q8`` [N, K] int8 and ``x.scale``; others under their name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ....kernels.linear import DenseWeight, Int4Weight, Int8Weight, Weight
from ....sessions.errors import ModelError
from .safetensors_source import open_safetensors
from .tensor_source import TensorSource


def write_prepared(source: TensorSource, path: Path) -> None:
    """Write all tensors of ``source`` to ``path``."""
    tensors: dict[str, Tensor] = {}
    for name, shape in source.shapes.items():
        if len(shape) == 1:
            tensors[name] = source.vector(name)
        else:
            tensors |= _stored(name, source.matrix(name))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


class PreparedSource:
    """The tensors of a file that ``write_prepared`` wrote.

    Raises:
        ModelError: the file is damaged.
    """

    def __init__(self, path: Path, content_hash: str) -> None:
        self._content_hash = content_hash
        try:
            self._file = open_safetensors(path)
            names: list[str] = list(self._file.keys())
            self._stored = {name: tuple(self._file.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is damaged: {error}", remedy="delete it; it is made again") from error

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for stored, shape in self._stored.items():
            name, _, part = stored.rpartition(".")
            if part == "q4":
                shapes[name] = (shape[0], shape[1] * 2)
            elif part == "q8":
                shapes[name] = shape
            elif part not in ("scale", "minimum"):
                shapes[stored] = shape
        return shapes

    def vector(self, name: str) -> Tensor:
        return self._tensor(name).to(torch.float32)

    def matrix(self, name: str) -> Weight:
        if f"{name}.q4" in self._stored:
            packed = self._tensor(f"{name}.q4")
            q = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
            return Int4Weight(q, self._tensor(f"{name}.scale"), self._tensor(f"{name}.minimum"))
        if f"{name}.q8" in self._stored:
            return Int8Weight(self._tensor(f"{name}.q8"), self._tensor(f"{name}.scale"))
        return DenseWeight(self._tensor(name))

    def content_hash(self) -> str:
        return self._content_hash

    def _tensor(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


def _stored(name: str, weight: Weight) -> dict[str, Tensor]:
    if isinstance(weight, Int4Weight):
        packed = weight.q[:, 0::2] | (weight.q[:, 1::2] << 4)
        return {f"{name}.q4": packed, f"{name}.scale": weight.scale, f"{name}.minimum": weight.minimum}
    if isinstance(weight, Int8Weight):
        return {f"{name}.q8": weight.q, f"{name}.scale": weight.scale}
    assert isinstance(weight, DenseWeight)  # GGUF files hold no other form
    return {name: weight.tensor}
