"""Copies of KV blocks in plain torch. A block is one run of bytes, so this is at memory speed on every device."""

from __future__ import annotations

from torch import Tensor


def copy_blocks(kv_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    for source, destination in zip(src.tolist(), dst.tolist(), strict=True):
        kv_pool[destination].copy_(kv_pool[source])
