"""rms_norm, silu_mul, rotary with the write of the KV, and block copies, interpreted."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_close

from sessile.kernels import silu_mul
from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.kv_copy import reference as copies_in_torch
from sessile.kernels.kv_copy import triton as copies
from sessile.kernels.kv_layout import KVLayout, KVOrder, gather, reordered
from sessile.kernels.rms_norm import reference as norms_in_torch
from sessile.kernels.rms_norm import triton as norms
from sessile.kernels.rotary import Heads, QKNorm, cos_sin_table
from sessile.kernels.rotary import reference as rotary_in_torch
from sessile.kernels.rotary import triton as rotary
from sessile.kernels.silu_mul import triton as silu_on_gpu


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("width", [64, 576])
def test_norms(width: int, dtype: torch.dtype, relative: float) -> None:
    x, residual = torch.randn(3, width).to(dtype), torch.randn(3, width).to(dtype)
    weight = torch.rand(width) + 0.5
    assert_close(norms.rms_norm(x, weight, 1e-5), norms_in_torch.rms_norm(x, weight, 1e-5), relative)
    found, total = norms.add_rms_norm(x, residual, weight, 1e-5)
    wanted, wanted_total = norms_in_torch.add_rms_norm(x, residual, weight, 1e-5)
    assert_close(found, wanted, relative)
    assert_close(total, wanted_total, relative)
    assert found.dtype == total.dtype == dtype


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
def test_silu_mul(dtype: torch.dtype, relative: float) -> None:
    gate_up = torch.randn(3, 2 * 1100).to(dtype)
    assert_close(silu_on_gpu.silu_mul(gate_up), silu_mul.silu_mul(gate_up), relative)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "dtype"), [(Heads(9, 3, 64), torch.bfloat16), (Heads(4, 4, 80), torch.float32)])
def test_rotary_kv_write(heads: Heads, dtype: torch.dtype, normed: bool) -> None:
    layout = KVLayout(2, heads.num_kv_heads, heads.head_dim, 16, dtype, KVOrder.PLAIN)
    pool, grouped = layout.allocate(5), KVLayout(2, heads.num_kv_heads, heads.head_dim, 16, dtype).allocate(5)
    pool.fill_(float("nan"))
    grouped.fill_(float("nan"))
    batch = AttentionBatch.build([[3, 1], [4]], [18, 2], [3, 2], 16)
    cos_sin = cos_sin_table(1e4 ** -(torch.arange(0, heads.head_dim, 2) / heads.head_dim), 32)
    norm = QKNorm(torch.rand(heads.head_dim) + 0.5, torch.rand(heads.head_dim) + 0.5, 1e-6) if normed else None
    qkv = torch.randn(5, heads.row_width).to(dtype)
    q = rotary.rotary_kv_write(qkv, cos_sin, batch, pool, 1, heads, norm)
    wanted = rotary_in_torch.rotary_kv_write(qkv, cos_sin, batch, grouped, 1, heads, norm)
    assert_close(q, wanted, 8e-3 if dtype == torch.bfloat16 else 1e-6)
    expected = reordered(grouped, heads.head_dim, KVOrder.PLAIN)
    assert torch.equal(pool.isnan(), expected.isnan())
    assert_close(pool.nan_to_num(), expected.nan_to_num(), 8e-3)


def test_rotary_skips_negative_slots() -> None:
    heads = Heads(1, 1, 64)
    pool = KVLayout(1, 1, 64, 16, torch.float32, KVOrder.PLAIN).allocate(2)
    batch = AttentionBatch(
        torch.zeros(1, dtype=torch.int32),
        torch.tensor([-1]),
        torch.zeros(1, 1, dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    cos_sin = cos_sin_table(torch.ones(32), 4)
    rotary.rotary_kv_write(torch.randn(1, heads.row_width), cos_sin, batch, pool, 0, heads, None)
    assert not pool.any()


def _pool(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    pool = KVLayout(2, 3, 64, 16, dtype, KVOrder.PLAIN).allocate(6)
    return pool.copy_(torch.randn(pool.shape))


def test_block_copies() -> None:
    pool = _pool()
    expected = pool.clone()
    src, dst = torch.tensor([1, 5]), torch.tensor([4, 0])
    copies.copy_blocks(pool, src, dst)
    copies_in_torch.copy_blocks(expected, src, dst)
    assert torch.equal(pool, expected)
    staging = torch.full_like(pool[:3], float("nan"))
    copies.gather_blocks(pool, torch.tensor([5, 2]), staging)
    assert torch.equal(staging[:2], pool[[5, 2]]) and staging[2].isnan().all()
    copies.scatter_blocks(staging, pool, torch.tensor([3, 1]))
    assert torch.equal(pool[[3, 1]], staging[:2])
    assert torch.equal(pool[0], expected[0])


@pytest.mark.parametrize("num_tokens", [0, 1, 11, 16])
def test_prefix_copies(num_tokens: int) -> None:
    pool = _pool()
    pool[2] = float("nan")
    copies.copy_block_prefix(pool, 4, 2, num_tokens, 64)
    grouped = reordered(pool, 64, KVOrder.GROUPED)
    for source, copied in zip(
        gather(grouped, 1, 64, torch.tensor([4])), gather(grouped, 1, 64, torch.tensor([2])), strict=True
    ):
        assert torch.equal(source[:num_tokens], copied[:num_tokens])
        assert copied[num_tokens:].isnan().all()


def test_copies_refuse_another_layout() -> None:
    with pytest.raises(ValueError, match="not of one layout"):
        copies.gather_blocks(_pool(), torch.tensor([0]), _pool(torch.float32))
