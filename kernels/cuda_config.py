"""How the Triton kernels are cut for a GPU: a small table, looked up when a process starts, never tuned in service."""

from __future__ import annotations

import enum
import functools
import os
from dataclasses import dataclass, replace

import torch

ARITHMETIC_VARIABLE = "SESSILE_ARITHMETIC"


class Arithmetic(enum.StrEnum):
    """What decides the order of additions on a GPU."""

    FAST = "fast"  # the shape of the batch may: splits and tiles follow it, dense layers go through cuBLAS
    DETERMINISTIC = "deterministic"  # nothing but a row and its context: fixed splits, one tile for every size


@dataclass(frozen=True, slots=True)
class Tile:
    """``rows`` x ``columns`` of outputs, ``inner`` at a time of what is summed over."""

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """``rows`` query rows (tokens times grouped heads) against ``keys`` keys at a time, for heads of 128 in bfloat16.

    Addresses of keys come from the block table, so Triton's pipeliner spends two stages on each tile in flight:
    5 stages are two tiles, 3 are one.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int

    def fitted(self, head_dim: int, element_bytes: int) -> AttentionTile:
        """With a smaller tile where a head has more than 256 bytes, so that registers and shared memory suffice."""
        if element_bytes == 4:
            return AttentionTile(rows=16, keys=16 if head_dim > 128 else 32, num_warps=4, num_stages=3)
        if head_dim > 128:
            return replace(self, rows=min(self.rows, 64), keys=32, num_stages=3)
        return self


@dataclass(frozen=True, slots=True)
class CudaConfig:
    """The cuts for one GPU. ``rows_skinny``: up to so many rows a linear layer is a read of its weights."""

    architecture: int  # 80, 90 or 100
    num_processors: int
    arithmetic: Arithmetic
    decode: AttentionTile
    extend: AttentionTile
    deterministic: AttentionTile  # of both, in that mode
    split_keys: int  # deterministic: attention starts anew after so many keys, and merges in order
    skinny: Tile  # linear layers over few rows
    skinny_normed: Tile  # the same with a norm before it
    skinny_quantised: Tile
    gated: Tile  # the same, two weights at once
    gated_quantised: Tile
    wide: Tile
    experts_few: Tile
    experts_many: Tile
    rows_skinny: int = 16

    @property
    def is_deterministic(self) -> bool:
        return self.arithmetic is Arithmetic.DETERMINISTIC


SHARED_MEMORY_LIMIT = {80: 166_912, 90: 232_448, 100: 232_448}  # bytes a program can have

_AMPERE = CudaConfig(
    architecture=80,
    num_processors=108,
    arithmetic=Arithmetic.FAST,
    decode=AttentionTile(rows=16, keys=64, num_warps=4, num_stages=5),
    extend=AttentionTile(rows=128, keys=32, num_warps=8, num_stages=5),
    deterministic=AttentionTile(rows=64, keys=32, num_warps=8, num_stages=5),
    split_keys=1024,
    skinny=Tile(rows=16, columns=32, inner=256, num_warps=4, num_stages=3),
    skinny_normed=Tile(rows=16, columns=32, inner=128, num_warps=4, num_stages=5),
    skinny_quantised=Tile(rows=16, columns=64, inner=128, num_warps=8, num_stages=4),
    gated=Tile(rows=16, columns=32, inner=128, num_warps=4, num_stages=3),
    gated_quantised=Tile(rows=16, columns=32, inner=128, num_warps=8, num_stages=4),
    wide=Tile(rows=64, columns=64, inner=64, num_warps=4, num_stages=3),
    experts_few=Tile(rows=16, columns=64, inner=64, num_warps=4, num_stages=3),
    experts_many=Tile(rows=64, columns=64, inner=64, num_warps=4, num_stages=3),
)
_HOPPER = replace(
    _AMPERE,
    architecture=90,
    num_processors=132,
    extend=AttentionTile(rows=128, keys=64, num_warps=8, num_stages=5),
    deterministic=AttentionTile(rows=64, keys=32, num_warps=4, num_stages=5),
    skinny=Tile(rows=16, columns=32, inner=256, num_warps=4, num_stages=4),
    gated=Tile(rows=16, columns=32, inner=128, num_warps=4, num_stages=4),
    wide=Tile(rows=128, columns=128, inner=64, num_warps=8, num_stages=3),
    experts_many=Tile(rows=128, columns=64, inner=64, num_warps=8, num_stages=3),
)
_BLACKWELL = replace(
    _HOPPER,
    architecture=100,
    num_processors=148,
    gated=Tile(rows=16, columns=32, inner=64, num_warps=4, num_stages=6),
)
_TABLE = {80: _AMPERE, 90: _HOPPER, 100: _BLACKWELL}


def config_for(architecture: int, arithmetic: Arithmetic, num_processors: int | None = None) -> CudaConfig:
    """The table's entry for compute capability ``architecture`` (major * 10 + minor), or the newest older one.

    In deterministic mode every kernel has one tile whatever the batch: decode takes the tile of extend, and skinny
    linear layers the wide one. Raises: ValueError for a GPU older than Ampere.
    """
    known = [entry for entry in _TABLE if entry <= architecture]
    if not known:
        raise ValueError(f"compute capability {architecture / 10} is older than 8.0")
    entry = _TABLE[max(known)]
    if num_processors is not None:
        entry = replace(entry, num_processors=num_processors)
    if arithmetic is Arithmetic.FAST:
        return entry
    wide = Tile(rows=64, columns=64, inner=64, num_warps=4, num_stages=3)
    return replace(
        entry,
        arithmetic=arithmetic,
        decode=entry.deterministic,
        extend=entry.deterministic,
        wide=wide,
        experts_many=entry.experts_few,
    )


def chosen_arithmetic() -> Arithmetic:
    """What the variable SESSILE_ARITHMETIC says; fast without it. Raises: ValueError for another word."""
    return Arithmetic(os.environ.get(ARITHMETIC_VARIABLE, Arithmetic.FAST))


@functools.cache
def config_of(device: torch.device) -> CudaConfig:
    """The cuts for ``device``, a CUDA device that is present. The first call decides for the process."""
    properties = torch.cuda.get_device_properties(device)
    architecture = properties.major * 10 + properties.minor
    return config_for(architecture, chosen_arithmetic(), properties.multi_processor_count)
