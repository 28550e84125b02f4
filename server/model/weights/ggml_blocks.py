"""GGUF's simple quantisations taken apart: blocks of 32 weights along a row, each with its own scale.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. ``rows`` is [N, bytes of a row] uint8.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BLOCK = 32
_Bytes = npt.NDArray[np.uint8]
_Half = npt.NDArray[np.float16]


def split_q4_1(rows: _Bytes) -> tuple[_Bytes, _Half, _Half]:
    """``w = q * scale + minimum``: q [N, K] 0..15, scale and minimum [N, K / 32]."""
    blocks = _blocks(rows, 20)
    return _nibbles(blocks[..., 4:]), _half(blocks[..., 0:2]), _half(blocks[..., 2:4])


def split_q4_0(rows: _Bytes) -> tuple[_Bytes, _Half, _Half]:
    """``w = (q - 8) * scale``, written as for Q4_1 with minimum = -8 * scale."""
    blocks = _blocks(rows, 18)
    scale = _half(blocks[..., 0:2])
    return _nibbles(blocks[..., 2:]), scale, scale * np.float16(-8)


def split_q8_0(rows: _Bytes) -> tuple[npt.NDArray[np.int8], _Half]:
    """``w = q * scale``: q [N, K] int8, scale [N, K / 32]."""
    blocks = _blocks(rows, 34)
    q = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(rows), -1)
    return q, _half(blocks[..., 0:2])


def _blocks(rows: _Bytes, block_bytes: int) -> _Bytes:
    return rows.reshape(len(rows), -1, block_bytes)


def _half(pairs: _Bytes) -> _Half:
    half: _Half = np.ascontiguousarray(pairs).view(np.float16)[..., 0]
    return half


def _nibbles(packed: _Bytes) -> _Bytes:
    """Low halves of a block's 16 bytes are its first 16 weights, high halves the others."""
    q: _Bytes = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return q.reshape(len(packed), -1)
