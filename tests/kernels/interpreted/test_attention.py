"""paged_attention, interpreted: decode, drafts, prefill chunks and mixtures of them, fast and deterministic."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from closeness import assert_close
from torch import Tensor

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.cuda_config import Arithmetic, AttentionTile, CudaConfig, config_for
from sessile.kernels.kv_layout import KVLayout, KVOrder, reordered
from sessile.kernels.paged_attention import reference
from sessile.kernels.paged_attention import triton as on_gpu

FAST = dataclasses.replace(
    config_for(90, Arithmetic.FAST),
    decode=AttentionTile(rows=16, keys=32, num_warps=4, num_stages=2),
    extend=AttentionTile(rows=64, keys=32, num_warps=4, num_stages=2),
)
# Splits of 32 keys, so that contexts of a test have several.
DETERMINISTIC = dataclasses.replace(config_for(90, Arithmetic.DETERMINISTIC), split_keys=32)
DETERMINISTIC = dataclasses.replace(DETERMINISTIC, decode=FAST.extend, extend=FAST.extend)
BLOCKS = 12


def _pool(kv_heads: int, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    layout = KVLayout(2, kv_heads, head_dim, 16, dtype, KVOrder.PLAIN)
    return layout.allocate(BLOCKS).copy_(torch.randn(BLOCKS, 2, 2, kv_heads, 16 * head_dim))


def _forget(pool: Tensor, tables: list[list[int]], contexts: list[int], head_dim: int) -> None:
    """NaN in every slot that no sequence has."""
    rows = pool.view(*pool.shape[:-1], 16, head_dim)
    unused = torch.ones(BLOCKS, 16, dtype=torch.bool)
    for table, context in zip(tables, contexts, strict=True):
        for token in range(context):
            unused[table[token // 16], token % 16] = False
    rows.permute(0, 4, 1, 2, 3, 5)[unused] = float("nan")


def _both(
    config: CudaConfig, group: int, head_dim: int, tables: list[list[int]], contexts: list[int], queries: list[int]
) -> tuple[Tensor, Tensor]:
    kv_heads = 2 if group < 8 else 1
    pool = _pool(kv_heads, head_dim)
    _forget(pool, tables, contexts, head_dim)
    q = torch.randn(sum(queries), group * kv_heads, head_dim).bfloat16()
    batch = AttentionBatch.build(tables, contexts, queries, 16)
    found = on_gpu.paged_attention(q, pool, 1, batch, head_dim**-0.5, config)
    grouped = reordered(pool, head_dim, KVOrder.GROUPED)
    return found, reference.paged_attention(q, grouped, 1, batch, head_dim**-0.5)


TABLES = [[3, 7, 1, 11, 2, 9, 4, 8], [0, 5, 6]]


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_decode(group: int, head_dim: int) -> None:
    found, wanted = _both(FAST, group, head_dim, TABLES, [113, 17], [1, 1])
    assert_close(found, wanted, 8e-3)


@pytest.mark.parametrize("contexts", [[128, 32], [1, 16], [127, 33]])
def test_decode_at_block_edges(contexts: list[int]) -> None:
    found, wanted = _both(FAST, 4, 64, TABLES, contexts, [1, 1])
    assert_close(found, wanted, 8e-3)


@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (3, 128), (4, 128), (8, 64)])
def test_extend(group: int, head_dim: int) -> None:
    found, wanted = _both(FAST, group, head_dim, TABLES, [70, 48], [37, 48])
    assert_close(found, wanted, 8e-3)


def test_a_decode_and_a_chunk_in_one_batch() -> None:
    found, wanted = _both(FAST, 4, 64, TABLES, [100, 35], [1, 20])
    assert_close(found, wanted, 8e-3)


def test_drafts_are_split_as_decodes() -> None:
    pool, q = _pool(2, 64), torch.randn(7, 6, 64).bfloat16()
    batch = AttentionBatch.build(TABLES, [100, 35], [4, 3], 16)
    short = dataclasses.replace(batch, num_short=2, max_short_len=4)
    found = on_gpu.paged_attention(q, pool, 0, short, 0.125, FAST)
    wanted = reference.paged_attention(q, reordered(pool, 64, KVOrder.GROUPED), 0, batch, 0.125)
    assert_close(found, wanted, 8e-3)


def test_float32_keeps_its_precision() -> None:
    pool, q = _pool(1, 128, torch.float32), torch.randn(6, 3, 128)
    batch = AttentionBatch.build([[3, 7, 1]], [40], [6], 16)
    found = on_gpu.paged_attention(q, pool, 0, batch, 0.1, FAST)
    wanted = reference.paged_attention(q, reordered(pool, 128, KVOrder.GROUPED), 0, batch, 0.1)
    assert_close(found, wanted, 1e-5)


def test_a_padded_sequence_gives_zeros() -> None:
    pool, q = _pool(2, 64), torch.randn(2, 2, 64).bfloat16()
    batch = AttentionBatch.build([[1], [0]], [9, 1], [1, 1], 16)
    padded = dataclasses.replace(batch, context_lens=torch.tensor([9, 0], dtype=torch.int32))
    found = on_gpu.paged_attention(q, pool, 0, padded, 0.125, FAST)
    assert not found[1].any() and found[0].any()


def test_deterministic_rows_are_the_same_bits_in_any_batch() -> None:
    head_dim, tables, context = 64, [TABLES[0]], 100
    pool, q = _pool(2, head_dim), torch.randn(context, 4, head_dim).bfloat16()

    def run(first: int, last: int) -> Tensor:
        batch = AttentionBatch.build(tables, [last], [last - first], 16)
        return on_gpu.paged_attention(q[first:last], pool, 1, batch, 0.125, DETERMINISTIC)

    whole = run(0, context)
    wanted_batch = AttentionBatch.build(tables, [context], [context], 16)
    wanted = reference.paged_attention(q, reordered(pool, head_dim, KVOrder.GROUPED), 1, wanted_batch, 0.125)
    assert_close(whole, wanted, 8e-3)
    assert torch.equal(run(61, 100), whole[61:]), "a chunk differs from the whole"
    for position in (0, 31, 32, 99):
        assert torch.equal(run(position, position + 1)[0], whole[position]), "a decode differs from the prefill"
