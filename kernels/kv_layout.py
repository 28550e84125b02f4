"""How the KV of a block lies in memory: one run of bytes a block, all layers together.

``[num_blocks, num_layers, 2, num_kv_heads, block_size * head_dim]``. Inside one head's part the order is the device's.
A GPU has it plain: ``[block_size, head_dim]``, keys and values alike. On a CPU, groups of 16 tokens follow
one another, and in a group of 16 (with ``p`` = 2 for bfloat16, 1 for float32, the elements that fill 32 bits):

- keys: ``[head_dim / p][16][p]``: one AVX-512 register holds the ``p`` same dimensions of 16 tokens, so that a
  register of 16 scores accumulates over the dimensions;
- values: ``[16 / p][head_dim][p]``: one register holds 16 dimensions of ``p`` tokens.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 16  # tokens that lie together inside a block
_HUGE_PAGE = 2 << 20  # bytes


class KVOrder(enum.Enum):
    """The order of elements inside one head's part of a block."""

    GROUPED = "grouped"  # CPUs
    PLAIN = "plain"  # GPUs

    @classmethod
    def of(cls, device: torch.device | str) -> KVOrder:
        """The order in which the kernels of ``device`` read and write."""
        return cls.PLAIN if torch.device(device).type == "cuda" else cls.GROUPED


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the KV pool of one model. ``dtype`` is float32 or bfloat16; ``block_size`` a multiple of 16.

    Raises: ValueError for another dtype, or sizes that the layout cannot hold.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    order: KVOrder = KVOrder.GROUPED

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"KV dtype must be float32 or bfloat16, not {self.dtype}")
        if self.block_size <= 0 or self.block_size % GROUP:
            raise ValueError(f"block_size must be a positive multiple of {GROUP}, not {self.block_size}")
        if self.head_dim <= 0 or self.head_dim % 2:
            raise ValueError(f"head_dim must be positive and even, not {self.head_dim}")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: keys and values of ``block_size`` tokens in all layers."""
        elements = self.num_layers * 2 * self.num_kv_heads * self.block_size * self.head_dim
        return elements * self.dtype.itemsize

    @property
    def name(self) -> str:
        """Name of the order of bytes inside a block; blocks of another name must not be read."""
        if self.order is KVOrder.PLAIN:
            return "plain"
        return f"group{GROUP}-pair{pair_of(self.dtype)}"

    def allocate(self, num_blocks: int, device: torch.device | str = "cpu") -> Tensor:
        """A zeroed pool ``[num_blocks, num_layers, 2, num_kv_heads, block_size * head_dim]``.

        On the CPU its pages are touched only when blocks are written.
        """
        shape = (num_blocks, self.num_layers, 2, self.num_kv_heads, self.block_size * self.head_dim)
        if torch.device(device).type == "cpu" and num_blocks:
            return _on_huge_pages(num_blocks * self.block_bytes).view(self.dtype).view(shape)
        return torch.zeros(shape, dtype=self.dtype, device=device)


def _on_huge_pages(num_bytes: int) -> Tensor:
    """Zeroed bytes, untouched. A decode reads a few KB here and there: with pages of 4 KB it waits for page tables."""
    memory = mmap.mmap(-1, num_bytes + _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: slower, not wrong
            memory.madvise(mmap.MADV_HUGEPAGE)
    everything = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the memory
    start = -everything.data_ptr() % _HUGE_PAGE
    return everything[start : start + num_bytes]


def pair_of(dtype: torch.dtype) -> int:
    """Elements of ``dtype`` that fill 32 bits."""
    return 4 // dtype.itemsize


def keys_view(kv_pool: Tensor, layer: int, head_dim: int) -> Tensor:
    """The keys of one layer as a view ``[num_blocks, num_kv_heads, block_size / 16, 16, head_dim / p, p]``."""
    keys, p = kv_pool[:, layer, 0], pair_of(kv_pool.dtype)
    return keys.view(*keys.shape[:2], -1, head_dim // p, GROUP, p).transpose(3, 4)


def values_view(kv_pool: Tensor, layer: int, head_dim: int) -> Tensor:
    """The values of one layer as a view ``[num_blocks, num_kv_heads, block_size / 16, 16 / p, p, head_dim]``."""
    values, p = kv_pool[:, layer, 1], pair_of(kv_pool.dtype)
    return values.view(*values.shape[:2], -1, GROUP // p, head_dim, p).transpose(4, 5)


def reordered(kv_pool: Tensor, head_dim: int, order: KVOrder) -> Tensor:
    """A copy of a pool that is in the other order, in ``order``. For tests and checks: pools are never converted."""
    result = torch.empty_like(kv_pool)
    plain, grouped = (kv_pool, result) if order is KVOrder.GROUPED else (result, kv_pool)
    for layer in range(kv_pool.shape[1]):
        keys, values = keys_view(grouped, layer, head_dim), values_view(grouped, layer, head_dim)
        plain_keys, plain_values = plain[:, layer, 0].view(keys.shape), plain[:, layer, 1].view(values.shape)
        if order is KVOrder.GROUPED:
            keys.copy_(plain_keys)
            values.copy_(plain_values)
        else:
            plain_keys.copy_(keys)
            plain_values.copy_(values)
    return result


def gather(kv_pool: Tensor, layer: int, head_dim: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of ``blocks`` in plain order, copies: ``[len(blocks) * block_size, num_kv_heads, head_dim]``."""
    keys = keys_view(kv_pool, layer, head_dim)[blocks].flatten(4, 5).flatten(2, 3)
    values = values_view(kv_pool, layer, head_dim)[blocks].flatten(3, 4).flatten(2, 3)
    return keys.transpose(1, 2).flatten(0, 1), values.transpose(1, 2).flatten(0, 1)
