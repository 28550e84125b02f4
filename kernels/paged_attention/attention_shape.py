"""What both attention kernels need to know of one call."""

from __future__ import annotations

from dataclasses import dataclass

# A batch's own arrays may start anywhere, and sizes of a step are any: no kernel is compiled anew for them.
TABLES = ["tables_ptr", "query_start_ptr", "context_lens_ptr"]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads, block size and scale; ``scale`` is that of scores to base 2."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    def constants(self) -> dict[str, int]:
        return {
            "NUM_HEADS": self.num_heads,
            "NUM_KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "WIDTH": max(16, 1 << (self.head_dim - 1).bit_length()),  # the next power of 2
            "BLOCK_SIZE": self.block_size,
        }
