"""The tensors of the device tier."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.backend import select
from ...kernels.cuda_config import config_of
from ...kernels.kv_copy import copy_block_prefix
from ...kernels.kv_layout import KVLayout
from ...sessions.cache.keys import KVFingerprint
from ...sessions.cache.prefix_cache import BlockCopy
from ...sessions.errors import ConfigError


class KVCache:
    """One tensor that holds the KV of all blocks: [num_blocks, num_layers, 2, num_kv_heads, block_size * head_dim].

    Who uses which block is the block pool's business.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.pool = layout.allocate(num_blocks, device)

    def rows(self) -> npt.NDArray[np.uint8]:
        """The blocks as bytes, a view: [num_blocks, block_bytes]. Only of a pool in this machine's memory."""
        rows: npt.NDArray[np.uint8] = self.pool.view(self.num_blocks, -1).view(torch.uint8).numpy()
        return rows

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Do the copies on write, in order."""
        for copy in copies:
            copy_block_prefix(self.pool, copy.source, copy.target, copy.num_tokens, self.layout.head_dim)


def arithmetic_of(device: torch.device) -> str:
    """A name of the order in which ``device``'s kernels add up. KV that another order made agrees with this one's to
    rounding only: turns that go on from it would not be what they are without a cache, to the bit."""
    if device.type == "cuda":
        config = config_of(device)
        return f"cuda{config.architecture}-{config.arithmetic.value}"
    library = select("cpu").library
    return "torch" if library is None else library.level.label


def kv_fingerprint(layout: KVLayout, weights: str, arithmetic: str) -> KVFingerprint:
    """What the bytes of a block depend on. ``weights`` is the model's fingerprint, in which its RoPE is counted;
    ``arithmetic`` names the instructions that compute (see ``arithmetic_of``)."""
    return KVFingerprint(
        weights=weights,
        dtype=str(layout.dtype).removeprefix("torch."),
        layout=f"{layout.name}-{arithmetic}",
        block_size=layout.block_size,
        block_bytes=layout.block_bytes,
        rope="as in weights",
    )


def blocks_in(memory_bytes: int, layout: KVLayout) -> int:
    """How many blocks fit in ``memory_bytes``.

    Raises:
        ConfigError: not even one does.
    """
    num_blocks = memory_bytes // layout.block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"engine.kv_memory_bytes is {memory_bytes}, one block takes {layout.block_bytes}",
            field="engine.kv_memory_bytes",
            remedy=f"give it at least {64 * layout.block_bytes}",
        )
    return num_blocks
