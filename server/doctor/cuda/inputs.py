"""Fresh random inputs for the self-test."""

from __future__ import annotations

import torch
from torch import Tensor

from ....kernels.attention_batch import AttentionBatch
from ....kernels.kv_layout import KVLayout, KVOrder
from ....kernels.linear import DenseWeight, Fp8Weight, Int4Weight, Int8Weight, Weight
from ....kernels.rotary import Heads

BLOCK_SIZE = 16
FORMS = ("dense", "int8", "int4", "fp8")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def pool_of(heads: Heads, num_blocks: int, num_layers: int = 1, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A pool with random KV in every slot."""
    layout = KVLayout(num_layers, heads.num_kv_heads, heads.head_dim, BLOCK_SIZE, dtype, KVOrder.PLAIN)
    return layout.allocate(num_blocks, "cuda").normal_()


def batch_of(contexts: list[int], queries: list[int], num_blocks: int) -> AttentionBatch:
    """Sequences whose blocks lie scattered over a pool of ``num_blocks``."""
    counts = [-(-context // BLOCK_SIZE) for context in contexts]
    order = torch.randperm(num_blocks)[: sum(counts)].tolist()
    tables, at = [], 0
    for count in counts:
        tables.append(order[at : at + count])
        at += count
    return AttentionBatch.build(tables, contexts, queries, BLOCK_SIZE, "cuda")


def weight_of(form: str, columns: int, width: int) -> Weight:
    """A random weight [columns, width] with values of about 1 / sqrt(width)."""
    size = width**-0.5
    groups = torch.rand(columns, width // 32, device="cuda") + 0.5
    match form:
        case "int8":
            q = torch.randint(-127, 128, (columns, width), device="cuda", dtype=torch.int8)
            return Int8Weight(q, groups * size / 73)
        case "int4":
            q = torch.randint(0, 16, (columns, width), device="cuda", dtype=torch.uint8)
            return Int4Weight(q, groups * size / 4.6, groups * size * -1.63)
        case "fp8":
            return Fp8Weight(normal(columns, width).to(torch.float8_e4m3fn), groups[:, 0] * size)
        case _:
            return DenseWeight((normal(columns, width, dtype=torch.float32) * size).bfloat16())


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over norm of what is wanted; NaN if any element is."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))


def unequal(found: Tensor, wanted: Tensor) -> float:
    """0 where all bits are equal, else 1."""
    return 0.0 if torch.equal(found, wanted) else 1.0
