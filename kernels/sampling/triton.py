"""Sampling on a GPU without a sort: thresholds are found by bisection over the logits' bits, then one token is drawn.

A threshold keeps all of equal logits: where several are equal at the edge of top-k or top-p, none is left out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .filters import RowSampling

_COLUMNS = 4096  # of a row at a time
_MOST_DRAFTS = 64


@triton.jit
def _ordered(x):
    """float32 as int32 in the same order; its own inverse on the bits."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _from_ordered(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _best(row_ptr, width, COLUMNS: tl.constexpr):
    """The highest logit and the first column that has it."""
    highest = float("-inf")
    best = 0
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = tl.load(row_ptr + column, mask=column < width, other=float("-inf")).to(tl.float32)
        peak = tl.max(x, 0)
        at = tl.min(tl.where(x == peak, column, width), 0)
        best = tl.where(peak > highest, at, best)
        highest = tl.maximum(peak, highest)
    return highest, best


@triton.jit
def _above(row_ptr, width, low, highest, inverse_temperature, floor, COLUMNS: tl.constexpr):
    """How many logits stand at or above ``low`` and ``floor``, and their weight."""
    counts = tl.zeros((COLUMNS,), tl.float32)
    weights = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = tl.load(row_ptr + column, mask=column < width, other=float("-inf")).to(tl.float32)
        there = (x >= low) & (x >= floor) & (column < width)
        counts += there.to(tl.float32)
        weights += tl.where(there, tl.exp((x - highest) * inverse_temperature), 0.0)
    return tl.sum(counts, 0), tl.sum(weights, 0)


@triton.jit
def _threshold(row_ptr, width, wanted, highest, inverse_temperature, floor, COUNT: tl.constexpr, COLUMNS: tl.constexpr):
    """The highest edge such that the logits at or above it count, or weigh, at least ``wanted``."""
    low = _ordered(highest * 0.0 - float("inf")).to(tl.int64)  # enough stand above it
    high = _ordered(highest).to(tl.int64) + 1  # none does
    above_low = width.to(tl.float32)
    above_high = highest * 0.0
    while (high - low > 1) & (above_low - above_high > 1.0):  # a single logit between them belongs to those above
        middle = (low + high) // 2
        value = _from_ordered(middle.to(tl.int32))
        count, weight = _above(row_ptr, width, value, highest, inverse_temperature, floor, COLUMNS)
        enough = count >= wanted
        if not COUNT:
            enough = weight >= wanted
        low, above_low = tl.where(enough, middle, low), tl.where(enough, count, above_low)
        high, above_high = tl.where(enough, high, middle), tl.where(enough, above_high, count)
    return _from_ordered(low.to(tl.int32))


@triton.jit(
    do_not_specialize_on_alignment=["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "uniform_ptr", "out_ptr"]
)
def _sample(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniform_ptr,
    out_ptr,
    width,
    COLUMNS: tl.constexpr,
):
    # logits [R, width], the parameters [R], out [R] int64; one row a program
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * width
    highest, chosen = _best(row_ptr, width, COLUMNS)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0.0:
        inverse = 1.0 / temperature
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        floor = highest * 0.0 - float("inf")
        if (top_k > 0) & (top_k < width):
            floor = _threshold(row_ptr, width, top_k.to(tl.float32), highest, inverse, floor, True, COLUMNS)
        if top_p < 1.0:
            _, whole = _above(row_ptr, width, floor, highest, inverse, floor, COLUMNS)
            edge = _threshold(row_ptr, width, top_p * whole, highest, inverse, floor, False, COLUMNS)
            floor = tl.maximum(floor, edge)
        min_p = tl.load(min_p_ptr + row)
        chosen = _draw(row_ptr, width, highest, inverse, floor, min_p, tl.load(uniform_ptr + row), chosen, COLUMNS)
    tl.store(out_ptr + row, chosen.to(tl.int64))


@triton.jit
def _weights(row_ptr, column, width, highest, inverse_temperature, floor, min_p):
    x = tl.load(row_ptr + column, mask=column < width, other=float("-inf")).to(tl.float32)
    weight = tl.exp((x - highest) * inverse_temperature)
    return tl.where((x >= floor) & (weight >= min_p) & (column < width), weight, 0.0)


@triton.jit
def _draw(row_ptr, width, highest, inverse_temperature, floor, min_p, uniform, best, COLUMNS: tl.constexpr):
    """The first column at which the weights kept so far pass ``uniform`` of their sum."""
    whole = highest * 0.0
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        whole += tl.sum(_weights(row_ptr, column, width, highest, inverse_temperature, floor, min_p), 0)
    target = uniform * whole
    before = highest * 0.0
    chosen = best
    searching = best >= 0
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        weight = _weights(row_ptr, column, width, highest, inverse_temperature, floor, min_p)
        here = tl.sum(weight, 0)
        if searching & (before + here > target):
            passed = (before + tl.cumsum(weight, 0) > target) & (weight > 0.0)
            at = tl.min(tl.where(passed, column, width), 0)
            if at < width:  # rounding may have the sum pass and no partial sum
                chosen = at
                searching = at < 0
        before += here
    return chosen


@triton.jit
def _argmax(logits_ptr, out_ptr, width, COLUMNS: tl.constexpr):
    # logits [R, width], out [R] int64
    row = tl.program_id(0)
    _, best = _best(logits_ptr + row.to(tl.int64) * width, width, COLUMNS)
    tl.store(out_ptr + row, best.to(tl.int64))


@triton.jit(do_not_specialize_on_alignment=["sampled_ptr", "token_ids_ptr", "query_start_ptr"])
def _verify_drafts(sampled_ptr, token_ids_ptr, query_start_ptr, accepted_ptr, ROWS: tl.constexpr):
    # sampled, token_ids [R] int64, query_start [S + 1], accepted [S] int32; one sequence a program
    sequence = tl.program_id(0)
    first = tl.load(query_start_ptr + sequence)
    drafts = tl.load(query_start_ptr + sequence + 1) - first - 1
    draft = tl.arange(0, ROWS)
    there = draft < drafts
    sampled = tl.load(sampled_ptr + first + draft, mask=there, other=0)
    proposed = tl.load(token_ids_ptr + first + draft + 1, mask=there, other=1)
    wrong = tl.min(tl.where(there & (sampled == proposed), ROWS, draft), 0)
    tl.store(accepted_ptr + sequence, tl.minimum(wrong, tl.maximum(drafts, 0)))


def argmax(logits: Tensor) -> Tensor:
    logits = logits.contiguous()
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if logits.shape[0]:
        _argmax[(logits.shape[0],)](logits, out, logits.shape[1], COLUMNS=_COLUMNS, num_warps=8)
    return out


def sample(logits: Tensor, rows: RowSampling) -> Tensor:
    """As the wrapper."""
    logits = logits.contiguous()
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if logits.shape[0]:
        _sample[(logits.shape[0],)](
            logits,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.min_p,
            rows.uniform,
            out,
            logits.shape[1],
            COLUMNS=_COLUMNS,
            num_warps=8,
        )
    return out


def verify_drafts(sampled: Tensor, token_ids: Tensor, query_start: Tensor, max_len: int) -> Tensor:
    """As the wrapper."""
    accepted = torch.empty(query_start.numel() - 1, dtype=torch.int32, device=sampled.device)
    if max_len > _MOST_DRAFTS:
        raise ValueError(f"{max_len} rows a sequence are more than {_MOST_DRAFTS}")
    if accepted.numel():
        _verify_drafts[(accepted.numel(),)](sampled, token_ids, query_start, accepted, ROWS=_MOST_DRAFTS, num_warps=1)
    return accepted
