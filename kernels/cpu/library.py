"""The built C++ kernels as Python sees them: a shared library with plain C functions, and a team of threads.

The structures mirror those of ``ops.h``, ``linear/weights.h`` and ``decoder/cpu.cpp``, field by field.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attention_batch import AttentionBatch
from .features import Level

Pointer = ctypes.c_void_p
Int64 = ctypes.c_int64
Int32 = ctypes.c_int32
Float = ctypes.c_float


class PackedWeightArgs(ctypes.Structure):
    _fields_ = (("storage", Pointer), ("rows", Int64), ("columns", Int64), ("form", Int32), ("reserved", Int32))


class BatchArgs(ctypes.Structure):
    _fields_ = (
        ("positions", Pointer),
        ("slots", Pointer),
        ("block_tables", Pointer),
        ("query_start", Pointer),
        ("context_lens", Pointer),
        ("max_blocks", Int64),
        ("num_tokens", Int64),
        ("num_sequences", Int64),
    )

    @classmethod
    def of(cls, batch: AttentionBatch) -> BatchArgs:
        return cls(
            batch.positions.data_ptr(),
            batch.slot_mapping.data_ptr(),
            batch.block_tables.data_ptr(),
            batch.query_start.data_ptr(),
            batch.context_lens.data_ptr(),
            batch.block_tables.shape[1],
            batch.num_tokens,
            batch.num_sequences,
        )


class KvLayerArgs(ctypes.Structure):
    _fields_ = (
        ("keys", Pointer),
        ("value_offset", Int64),
        ("block_stride", Int64),
        ("head_stride", Int64),
        ("block_size", Int32),
        ("is_bfloat16", Int32),
    )

    @classmethod
    def of(cls, kv_pool: Tensor, layer: int, head_dim: int) -> KvLayerArgs:
        block, per_layer, kind, head, _ = (stride * kv_pool.element_size() for stride in kv_pool.stride())
        return cls(
            kv_pool.data_ptr() + layer * per_layer,
            kind,
            block,
            head,
            kv_pool.shape[-1] // head_dim,
            kv_pool.dtype == torch.bfloat16,
        )


class HeadsArgs(ctypes.Structure):
    _fields_ = (("num_heads", Int32), ("num_kv_heads", Int32), ("head_dim", Int32))


class LinearArgs(ctypes.Structure):
    _fields_ = (
        ("x", Pointer),
        ("rows", Int64),
        ("weight", ctypes.POINTER(PackedWeightArgs)),
        ("bias", Pointer),
        ("residual", Pointer),
        ("out", Pointer),
    )


class RmsNormArgs(ctypes.Structure):
    _fields_ = (
        ("x", Pointer),
        ("residual", Pointer),
        ("weight", Pointer),
        ("out", Pointer),
        ("total", Pointer),
        ("rows", Int64),
        ("width", Int64),
        ("eps", Float),
    )


class RotaryArgs(ctypes.Structure):
    _fields_ = (
        ("qkv", Pointer),
        ("cos_sin", Pointer),
        ("q_norm", Pointer),
        ("k_norm", Pointer),
        ("q_out", Pointer),
        ("heads", HeadsArgs),
        ("eps", Float),
    )


class AttentionArgs(ctypes.Structure):
    _fields_ = (("q", Pointer), ("out", Pointer), ("heads", HeadsArgs), ("scale", Float))


class DecoderLayerArgs(ctypes.Structure):
    _fields_ = (
        ("qkv", PackedWeightArgs),
        ("o", PackedWeightArgs),
        ("gate_up", PackedWeightArgs),
        ("down", PackedWeightArgs),
        ("input_norm", Pointer),
        ("post_norm", Pointer),
        ("qkv_bias", Pointer),
        ("o_bias", Pointer),
        ("q_norm", Pointer),
        ("k_norm", Pointer),
    )


class DecoderArgs(ctypes.Structure):
    _fields_ = (
        ("layers", Pointer),
        ("num_layers", Int64),
        ("hidden", Int64),
        ("inner", Int64),
        ("final_norm", Pointer),
        ("cos_sin", Pointer),
        ("heads", HeadsArgs),
        ("attention_scale", Float),
        ("eps", Float),
        ("qk_eps", Float),
    )


_SIGNATURES: dict[str, list[Any]] = {
    "sessile_linear": [ctypes.POINTER(LinearArgs)],
    "sessile_rms_norm": [ctypes.POINTER(RmsNormArgs)],
    "sessile_silu_mul": [Pointer, Int64, Int64, Pointer],
    "sessile_rotary_kv_write": [ctypes.POINTER(t) for t in (RotaryArgs, BatchArgs, KvLayerArgs)],
    "sessile_paged_attention": [ctypes.POINTER(t) for t in (AttentionArgs, BatchArgs, KvLayerArgs)],
    "sessile_embedding": [ctypes.POINTER(PackedWeightArgs), Pointer, Int64, Pointer],
    "sessile_argmax": [Pointer, Int64, Int64, Pointer],
    "sessile_top_k": [Pointer, Int64, Int64, Int64, Pointer, Pointer],
    "sessile_decoder": [
        ctypes.POINTER(DecoderArgs),
        Pointer,
        Pointer,
        ctypes.POINTER(BatchArgs),
        ctypes.POINTER(KvLayerArgs),
        Int64,
    ],
}


@dataclass(frozen=True, slots=True)
class CpuLibrary:
    """Calls go through ``call``, which lets other Python threads run meanwhile. Two calls at once take turns."""

    level: Level
    threads: int
    library: ctypes.CDLL
    team: int

    @classmethod
    def load(cls, path: Path, level: Level, threads: int) -> CpuLibrary:
        """Loads the library and starts its team; the team lives as long as the process. Raises: OSError."""
        library = ctypes.CDLL(str(path))
        library.sessile_team_new.argtypes = [ctypes.c_int]
        library.sessile_team_new.restype = Pointer
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = [Pointer, *arguments]
            function.restype = None
        return cls(level, threads, library, library.sessile_team_new(threads))

    def call(self, name: str, *arguments: object) -> None:
        getattr(self.library, name)(self.team, *arguments)


def pointer(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
    """Where a contiguous CPU tensor's elements begin; None stays None.

    Raises: ValueError for another dtype, device or order: C++ would read garbage.
    """
    if tensor is None:
        return None
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"expected a contiguous {dtype} tensor on the CPU, got {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr()
