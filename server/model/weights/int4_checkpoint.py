"""Safetensors checkpoints with 4-bit weights as AWQ and GPTQ pack them, eight to an int32.

A layer ``x`` with K inputs and N outputs has ``x.qweight``, ``x.qzeros`` [K / group, N / 8] and ``x.scales``
[K / group, N]; ``w = (q - zero) * scale``. AWQ's qweight is [K, N / 8]; GPTQ's is [K / 8, N], with ``x.g_idx`` [K].
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from ....kernels.linear import DenseWeight, Int4Weight, Weight
from ....sessions.errors import ModelError
from .safetensors_source import SafetensorsSource

_GROUP = 32  # of the kernels
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column that each nibble of an int32 holds, lowest first
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


class Int4Format(enum.StrEnum):
    """How the nibbles lie in an int32."""

    AWQ = "awq"
    GPTQ = "gptq"  # zeros are stored less one
    GPTQ_V2 = "gptq_v2"


class _Quantization(msgspec.Struct, frozen=True):
    """The ``quantization_config`` of a config.json, as far as it decides what is read."""

    quant_method: str = "unnamed"
    bits: int = 0
    version: str = "gemm"
    zero_point: bool = True
    checkpoint_format: str = "gptq"


def int4_format(quantization: Mapping[str, Any], where: str) -> Int4Format:
    """The format that a ``quantization_config`` names.

    Raises:
        ModelError: it is another than AWQ (GEMM) or GPTQ with 4 bits.
    """
    try:
        named = msgspec.convert(dict(quantization), _Quantization)
    except msgspec.ValidationError as error:
        raise ModelError(f"quantization_config in {where}: {error}", field="quantization_config") from error
    if named.bits == 4 and named.quant_method == "awq" and named.version.lower() == "gemm" and named.zero_point:
        return Int4Format.AWQ
    if named.bits == 4 and named.quant_method == "gptq" and named.checkpoint_format in ("gptq", "gptq_v2"):
        return Int4Format(named.checkpoint_format)
    described = f"{named.quant_method} with {named.bits} bits" if named.bits else named.quant_method
    raise ModelError(
        f"{where}: weights quantised as {described} cannot be read",
        field="quantization_config",
        remedy="take AWQ (GEMM) or GPTQ weights of 4 bits, unquantised weights, or a GGUF file of the model",
    )


class Int4CheckpointSource:
    """The tensors of such a checkpoint: packed layers as 4-bit weights, others as they are.

    ``biases`` are those that the model has; packers write zeros for others, which are left out.
    """

    def __init__(self, files: SafetensorsSource, form: Int4Format, biases: frozenset[str]) -> None:
        self._files = files
        self._form = form
        stored = files.shapes
        self._layers = {name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in stored.items():
            layer, _, part = name.rpartition(".")
            if layer not in self._layers or not (part in _PARTS or self._is_filler(name, part, biases)):
                self._shapes[name] = shape
        self._shapes |= {f"{layer}.weight": self._layer_shape(layer) for layer in self._layers}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def vector(self, name: str) -> Tensor:
        return self._files.vector(name)

    def matrix(self, name: str) -> Weight:
        layer = name.removesuffix(".weight")
        return self._packed(layer) if layer in self._layers else self._files.matrix(name)

    def content_hash(self) -> str:
        return self._files.content_hash()

    def _is_filler(self, name: str, part: str, biases: frozenset[str]) -> bool:
        return part == "bias" and name not in biases and not bool(self._files.tensor(name).any())

    def _layer_shape(self, layer: str) -> tuple[int, ...]:
        """[N, K], after a check that the layer's tensors belong together."""
        stored = self._files.shapes
        for part in ("qzeros", "scales"):
            if f"{layer}.{part}" not in stored:
                raise ModelError(f"the weights have no tensor '{layer}.{part}'", field=f"{layer}.{part}")
        packed, groups, scales = (stored[f"{layer}.{part}"] for part in ("qweight", "qzeros", "scales"))
        if len(packed) != 2 or len(scales) != 2 or len(groups) != 2:
            raise ModelError(f"tensor '{layer}.qweight' has the shape {packed}", field=f"{layer}.qweight")
        inputs, outputs = (packed[0], packed[1] * 8) if self._form is Int4Format.AWQ else (packed[0] * 8, packed[1])
        whole = scales[0] > 0 and inputs % (scales[0] * _GROUP) == 0
        if not whole or scales[1] != outputs or groups != (scales[0], outputs // 8):
            raise ModelError(
                f"the parts of {layer!r} do not fit: qweight {packed}, qzeros {groups}, scales {scales}",
                field=f"{layer}.scales",
                remedy=f"groups must be of a multiple of {_GROUP} weights",
            )
        return outputs, inputs

    def _packed(self, layer: str) -> Weight:
        scales = self._files.tensor(f"{layer}.scales").float()  # [K / group, N]
        packed, zeros = (self._files.tensor(f"{layer}.{part}") for part in ("qweight", "qzeros"))
        if self._form is Int4Format.AWQ:
            q, zero = _columns(packed, _AWQ_ORDER), _columns(zeros, _AWQ_ORDER)
        else:
            q, zero = _columns(packed.T, range(8)).T, _columns(zeros, range(8))
            zero = zero + (1 if self._form is Int4Format.GPTQ else 0)
        order = self._group_of_inputs(layer, q.shape[0], scales.shape[0])
        if order is not None:
            return DenseWeight(((q.float() - zero.float()[order]) * scales[order]).T.contiguous())
        repeats = q.shape[0] // scales.shape[0] // _GROUP
        scale, minimum = (part.T.repeat_interleave(repeats, dim=1) for part in (scales, -zero.float() * scales))
        return Int4Weight(q.T.contiguous(), scale.contiguous(), minimum.contiguous())

    def _group_of_inputs(self, layer: str, inputs: int, groups: int) -> Tensor | None:
        """The group of each input where they are out of order (GPTQ's ``desc_act``); None where they are in order."""
        name = f"{layer}.g_idx"
        if self._form is Int4Format.AWQ or name not in self._files.shapes:
            return None
        group = self._files.tensor(name).long()
        if group.shape != (inputs,) or bool((group < 0).any()) or bool((group >= groups).any()):
            raise ModelError(f"tensor {name!r} names groups that are not there", field=name)
        return None if torch.equal(group, torch.arange(inputs) // (inputs // groups)) else group


def _columns(packed: Tensor, order: Any) -> Tensor:
    """int32 [R, C] to uint8 [R, C * 8]: nibble i of an int32 is its column ``order[i]``."""
    nibbles = torch.stack([(packed >> (4 * place)) & 15 for place in range(8)], dim=-1).to(torch.uint8)
    columns = torch.empty_like(nibbles)
    columns[..., list(order)] = nibbles
    return columns.flatten(1)
