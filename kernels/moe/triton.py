"""Mixture of experts on a GPU: tokens are sorted by expert, and two grouped products run over the sorted rows.

The host never learns who chose what: grids have the most tiles that can be needed, and a tile finds its expert itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cuda_config import CudaConfig, Tile
from ..linear import PackedLinear
from ..linear.packed import WeightForm
from ..linear.rows import unpacked
from ..linear.weight_tile import TILE_FORM, TileForm, weight_tile
from ..tile import dot, locate, narrow
from .experts import Experts

_DENSE = tl.constexpr(int(TileForm.DENSE))
_INT8 = tl.constexpr(int(TileForm.INT8))
_FP8 = tl.constexpr(int(TileForm.FP8))
_COLUMNS = 1024


@triton.jit
def _expert_weight(storages_ptr, expert, scale_offset, minimum_offset, FORM: tl.constexpr):
    """Pointers to an expert's weight, scales and minima. storages [experts] int64: addresses."""
    base = tl.load(storages_ptr + expert)
    scales = base + scale_offset
    minima = base + minimum_offset
    if FORM == _DENSE:
        weight_ptr = base.to(tl.pointer_type(tl.bfloat16))
    elif FORM == _INT8:
        weight_ptr = base.to(tl.pointer_type(tl.int8))
    else:
        weight_ptr = base.to(tl.pointer_type(tl.uint8))
    if FORM == _FP8:
        scale_ptr = scales.to(tl.pointer_type(tl.float32))
    else:
        scale_ptr = scales.to(tl.pointer_type(tl.float16))
    minimum_ptr = minima.to(tl.pointer_type(tl.float16))
    # Each part starts at a multiple of 256 bytes; said of the pointers, since a cast forgets it.
    return tl.multiple_of(weight_ptr, 16), tl.multiple_of(scale_ptr, 16), tl.multiple_of(minimum_ptr, 16)


@triton.jit
def _gate_up(
    x_ptr,
    storages_ptr,
    starts_ptr,
    pairs_ptr,
    out_ptr,
    num_experts,
    num_columns,
    width,
    scale_offset,
    minimum_offset,
    NUM_PER_TOKEN: tl.constexpr,
    FORM: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
):
    # x [T, width]; weights [2 * columns, width] gate first; starts [E + 1] int32 and pairs [T * k] int64: the sorted
    # (token, choice) pairs of each expert; out [T * k, columns] in sorted order: silu(gate) * up
    expert, tile = locate(starts_ptr, num_experts, ROWS, tl.program_id(1), EXPERTS)
    if expert < num_experts:
        last = tl.load(starts_ptr + expert + 1)
        place = tl.load(starts_ptr + expert) + tile * ROWS + tl.arange(0, ROWS)
        there = place < last
        token = tl.load(pairs_ptr + place, mask=there, other=0) // NUM_PER_TOKEN
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        column_there = column < num_columns
        weight_ptr, scale_ptr, minimum_ptr = _expert_weight(storages_ptr, expert, scale_offset, minimum_offset, FORM)
        gates = tl.zeros((COLUMNS, ROWS), tl.float32)
        ups = tl.zeros((COLUMNS, ROWS), tl.float32)
        for start in range(0, width, INNER):
            gate = weight_tile(
                weight_ptr, scale_ptr, minimum_ptr, column, column_there, start, width, FORM, COLUMNS, INNER, EVEN
            )
            up = weight_tile(
                weight_ptr, scale_ptr, minimum_ptr, column + num_columns, column_there, start, width, FORM, COLUMNS,
                INNER, EVEN,
            )  # fmt: skip
            inner = start + tl.arange(0, INNER)
            usable = there[:, None] & (inner < width)[None, :]
            x = tl.load(x_ptr + token[:, None] * width + inner[None, :], mask=usable, other=0.0)
            turned = tl.trans(narrow(x, gate.dtype))
            gates = dot(gate, turned, gates)
            ups = dot(up, turned, ups)
        if FORM == _FP8:
            gates *= tl.load(scale_ptr + column, mask=column_there, other=0.0)[:, None]
            ups *= tl.load(scale_ptr + num_columns + column, mask=column_there, other=0.0)[:, None]
        result = tl.trans(gates / (1.0 + tl.exp(-gates)) * ups)
        at = place.to(tl.int64)[:, None] * num_columns + column[None, :]
        tl.store(out_ptr + at, narrow(result, out_ptr.dtype.element_ty), mask=there[:, None] & column_there[None, :])


@triton.jit
def _down(
    x_ptr,
    storages_ptr,
    starts_ptr,
    pairs_ptr,
    shares_ptr,
    out_ptr,
    num_experts,
    num_columns,
    width,
    scale_offset,
    minimum_offset,
    FORM: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    EVEN: tl.constexpr,
):
    # x [T * k, width] in sorted order; weights [columns, width]; shares [T * k] float32 by pair;
    # out [T * k, columns] float32 by pair: each choice's part, times its share
    expert, tile = locate(starts_ptr, num_experts, ROWS, tl.program_id(1), EXPERTS)
    if expert < num_experts:
        last = tl.load(starts_ptr + expert + 1)
        place = tl.load(starts_ptr + expert) + tile * ROWS + tl.arange(0, ROWS)
        there = place < last
        pair = tl.load(pairs_ptr + place, mask=there, other=0)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        column_there = column < num_columns
        weight_ptr, scale_ptr, minimum_ptr = _expert_weight(storages_ptr, expert, scale_offset, minimum_offset, FORM)
        sums = tl.zeros((COLUMNS, ROWS), tl.float32)
        for start in range(0, width, INNER):
            weight = weight_tile(
                weight_ptr, scale_ptr, minimum_ptr, column, column_there, start, width, FORM, COLUMNS, INNER, EVEN
            )
            inner = start + tl.arange(0, INNER)
            usable = there[:, None] & (inner < width)[None, :]
            x = tl.load(x_ptr + place.to(tl.int64)[:, None] * width + inner[None, :], mask=usable, other=0.0)
            sums = dot(weight, tl.trans(narrow(x, weight.dtype)), sums)
        if FORM == _FP8:
            sums *= tl.load(scale_ptr + column, mask=column_there, other=0.0)[:, None]
        share = tl.load(shares_ptr + pair, mask=there, other=0.0)
        at = pair[:, None] * num_columns + column[None, :]
        tl.store(out_ptr + at, tl.trans(sums) * share[:, None], mask=there[:, None] & column_there[None, :])


@triton.jit
def _sum_choices(parts_ptr, out_ptr, width, NUM_PER_TOKEN: tl.constexpr, COLUMNS: tl.constexpr):
    # parts [T, k, width] float32, out [T, width]; likeliest choice first, in order
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros((COLUMNS,), tl.float32)
    for choice in range(NUM_PER_TOKEN):
        total += tl.load(parts_ptr + (token * NUM_PER_TOKEN + choice) * width + column, mask=inside, other=0.0)
    tl.store(out_ptr + token * width + column, narrow(total, out_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """Where the same layer of all experts lies, for kernels. The experts' storages must outlive it."""

    addresses: Tensor  # [E] int64
    form: WeightForm
    out_features: int
    in_features: int
    scale_offset: int  # bytes from a storage's start
    minimum_offset: int

    @classmethod
    def of(cls, experts: tuple[PackedLinear, ...]) -> ExpertTable:
        """Raises: ValueError if the experts differ in form or shape, or are not of two bytes an element where dense."""
        first = experts[0]
        if any((e.form, e.out_features, e.in_features) != (first.form, *_shape(first)) for e in experts):
            raise ValueError("the experts of a layer must be of one form and shape")
        if first.form is WeightForm.ROWS and first.storage.dtype != torch.bfloat16:
            raise ValueError(f"experts of {first.storage.dtype} are not for this kernel")
        scale_offset = minimum_offset = 0
        if first.form is not WeightForm.ROWS:
            parts = unpacked(first)
            scale_offset = parts.scale.data_ptr() - first.storage.data_ptr()
            minimum_offset = parts.minimum.data_ptr() - first.storage.data_ptr()
        addresses = torch.tensor([e.storage.data_ptr() for e in experts], dtype=torch.int64)
        return cls(addresses.to(first.storage.device), first.form, *_shape(first), scale_offset, minimum_offset)


@dataclass(frozen=True, slots=True)
class _Routing:
    starts: Tensor  # [E + 1] int32: where each expert's pairs start
    pairs: Tensor  # [T * k] int64: token * k + choice, sorted by expert
    shares: Tensor  # [T * k] float32, by pair


def moe_mlp(x: Tensor, router_logits: Tensor, experts: Experts, config: CudaConfig) -> Tensor:
    """As the wrapper."""
    tokens, hidden = x.shape
    if not tokens:
        return torch.empty_like(x)
    x = x.contiguous()
    table, down = tables_of(experts)
    routing = _route(router_logits, experts)
    pairs = routing.pairs.numel()
    inner = table.out_features // 2
    gated = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    tile = config.experts_few if config.is_deterministic or pairs <= 16 * len(experts.down) else config.experts_many
    tiles = pairs // tile.rows + min(len(experts.down), pairs)
    _gate_up[(triton.cdiv(inner, tile.columns), tiles)](
        x,
        table.addresses,
        routing.starts,
        routing.pairs,
        gated,
        len(experts.down),
        inner,
        hidden,
        table.scale_offset,
        table.minimum_offset,
        NUM_PER_TOKEN=experts.num_per_token,
        **_cut(table, tile, len(experts.down)),
    )
    parts = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    _down[(triton.cdiv(hidden, tile.columns), tiles)](
        gated,
        down.addresses,
        routing.starts,
        routing.pairs,
        routing.shares,
        parts,
        len(experts.down),
        hidden,
        inner,
        down.scale_offset,
        down.minimum_offset,
        **_cut(down, tile, len(experts.down)),
    )
    out = torch.empty_like(x)
    _sum_choices[(tokens, triton.cdiv(hidden, _COLUMNS))](
        parts, out, hidden, NUM_PER_TOKEN=experts.num_per_token, COLUMNS=_COLUMNS, num_warps=4
    )
    return out


def tables_of(experts: Experts) -> tuple[ExpertTable, ExpertTable]:
    """The tables of both layers: made when the experts were put together, or now."""
    if experts.tables is not None:
        return experts.tables
    return ExpertTable.of(tuple(experts.gate_up)), ExpertTable.of(tuple(experts.down))


def _route(router_logits: Tensor, experts: Experts) -> _Routing:
    """In torch operators that can be captured in a graph."""
    shares, chosen = router_logits.float().softmax(dim=-1).topk(experts.num_per_token, dim=-1)
    if experts.normalise:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    chosen_sorted, pairs = chosen.flatten().sort(stable=True)
    bounds = torch.arange(len(experts.down) + 1, device=chosen.device)
    starts = torch.searchsorted(chosen_sorted, bounds).to(torch.int32)
    return _Routing(starts, pairs, shares.flatten().contiguous())


def _cut(table: ExpertTable, tile: Tile, num_experts: int) -> dict[str, int | bool]:
    return {
        "FORM": int(TILE_FORM[table.form]),
        "EXPERTS": triton.next_power_of_2(num_experts),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "INNER": tile.inner,
        "EVEN": table.in_features % tile.inner == 0,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _shape(packed: PackedLinear) -> tuple[int, int]:
    return packed.out_features, packed.in_features
