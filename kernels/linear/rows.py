"""Weights for a GPU: plain rows. Quantised ones lie in one run of bytes: all of q, then the scales (then the minima).

=========  ================================  ==============================
form       q                                 scales
=========  ================================  ==============================
rows       [N, K] float32 or bfloat16        none
int8_rows  [N, K] int8                       [N, K / 32] float16
int4_rows  [N, K / 2] uint8, even K low      [N, K / 32] float16, twice
fp8_rows   [N, K] float8_e4m3fn              [N] float32
=========  ================================  ==============================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .packed import PackedLinear, WeightForm
from .weights import GROUP, DenseWeight, Fp8Weight, Int4Weight, Int8Weight, Weight

_ALIGNMENT = 256  # bytes; each part starts at a multiple of it


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """Views of a packed weight's parts. ``minimum`` is of int4 alone; others have ``scale`` there again."""

    q: Tensor
    scale: Tensor
    minimum: Tensor


def pack_rows(weight: Weight, device: torch.device | str) -> PackedLinear:
    """Packs ``weight`` in the form above that belongs to it."""
    rows, columns = weight.shape
    match weight:
        case DenseWeight(tensor):
            dtype = torch.float32 if tensor.dtype == torch.float32 else torch.bfloat16
            return PackedLinear(WeightForm.ROWS, rows, columns, tensor.to(device, dtype).contiguous())
        case Int8Weight(q, scale):
            form, parts = WeightForm.INT8_ROWS, [q, scale]
        case Int4Weight(q, scale, minimum):
            form, parts = WeightForm.INT4_ROWS, [q[:, 0::2] | (q[:, 1::2] << 4), scale, minimum]
        case Fp8Weight(q, scale):
            form, parts = WeightForm.FP8_ROWS, [q, scale]
    return PackedLinear(form, rows, columns, _joined(parts).to(device))


def unpacked(packed: PackedLinear) -> QuantisedRows:
    """The parts of a quantised weight, as views of its storage. Raises: ValueError for a dense one."""
    n, k = packed.out_features, packed.in_features
    groups = (n, k // GROUP)
    match packed.form:
        case WeightForm.INT8_ROWS:
            parts = _parts(packed.storage, [((n, k), torch.int8), (groups, torch.float16)])
        case WeightForm.INT4_ROWS:
            shapes = [((n, k // 2), torch.uint8), (groups, torch.float16), (groups, torch.float16)]
            parts = _parts(packed.storage, shapes)
        case WeightForm.FP8_ROWS:
            parts = _parts(packed.storage, [((n, k), torch.uint8), ((n,), torch.float32)])
        case _:
            raise ValueError(f"a weight of form {packed.form} has no quantised rows")
    return QuantisedRows(parts[0], parts[1], parts[-1])


def dequantise_rows(packed: PackedLinear, rows: Tensor | None = None) -> Tensor:
    """The values of all rows, or of ``rows`` [R] int64: [R, K], float32 for float32 weights, else bfloat16."""
    if packed.form is WeightForm.ROWS:
        return packed.storage if rows is None else packed.storage[rows]
    parts = unpacked(packed)
    q, scale, minimum = (part if rows is None else part[rows] for part in (parts.q, parts.scale, parts.minimum))
    match packed.form:
        case WeightForm.INT8_ROWS:
            return Int8Weight(q, scale).dequantise()
        case WeightForm.INT4_ROWS:
            nibbles = torch.stack([q & 15, q >> 4], dim=-1).flatten(1)
            return Int4Weight(nibbles, scale, minimum).dequantise()
        case _:
            return Fp8Weight(q.view(torch.float8_e4m3fn), scale).dequantise()


def _joined(parts: list[Tensor]) -> Tensor:
    flat = [part.contiguous().view(torch.uint8).flatten() for part in parts]
    padded = [torch.nn.functional.pad(part, (0, -part.numel() % _ALIGNMENT)) for part in flat]
    return torch.cat(padded)


def _parts(storage: Tensor, shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    parts, at = [], 0
    for shape, dtype in shapes:
        size = torch.Size(shape).numel() * dtype.itemsize
        parts.append(storage[at : at + size].view(dtype).view(shape))
        at += size + -size % _ALIGNMENT
    return parts
