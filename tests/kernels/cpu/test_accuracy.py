"""Each op of the C++ kernels against float64, within what its number formats allow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.embedding import embedding
from sessile.kernels.kv_layout import KVLayout, gather
from sessile.kernels.linear import DenseWeight, linear, pack
from sessile.kernels.paged_attention import paged_attention
from sessile.kernels.paged_attention import reference as attention_reference
from sessile.kernels.rms_norm import add_rms_norm
from sessile.kernels.rotary import Heads, QKNorm, cos_sin_table, rotary_kv_write
from sessile.kernels.rotary import reference as rotary_reference
from sessile.kernels.sampling import argmax, reference, top_k
from sessile.kernels.silu_mul import silu_mul

from .small_decoder import FORMS, random_weight

TOLERANCE = 1e-2  # of the largest value: what bfloat16 allows


def assert_near(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    assert torch.isfinite(found).all()
    worst = (found.double() - expected).abs().max() / expected.abs().max()
    assert worst <= tolerance, float(worst)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 40, 64), (5, 96, 320), (37, 70, 1024)])
def test_linear(level: str, form: str, rows: int, n: int, k: int) -> None:
    weight = random_weight(form, n, k)
    values = weight.dequantise(torch.float32 if form == "float32" else torch.bfloat16).double()
    x, bias, residual = torch.randn(rows, k), torch.randn(n), torch.randn(rows, n)
    found = linear(x, pack(weight), bias, residual)
    rounds_x = "bf16" in level and form != "float32"
    assert_near(found, x.double() @ values.T + bias + residual, TOLERANCE if rounds_x else 2e-6)


def test_linear_with_a_k_that_blocks_cannot_hold(level: str) -> None:
    weight, x = DenseWeight(torch.randn(7, 50)), torch.randn(3, 50)
    assert_near(linear(x, pack(weight)), x.double() @ weight.tensor.double().T, 1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_embedding(level: str, form: str) -> None:
    weight = random_weight(form, 70, 96)
    ids = torch.tensor([0, 69, 33, 31, 32, 0])
    values = weight.dequantise(torch.float32 if form == "float32" else torch.bfloat16).float()
    assert torch.equal(embedding(ids, pack(weight)), values[ids])
    with pytest.raises(IndexError, match="70"):
        embedding(torch.tensor([70]), pack(weight))


@pytest.mark.parametrize("width", [64, 100])
def test_rms_norm_and_silu_mul(level: str, width: int) -> None:
    x, residual, weight = torch.randn(9, width) * 10, torch.randn(9, width), torch.randn(width)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    wide = (x + residual).double()
    assert torch.equal(total, x + residual)
    assert_near(normed, wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight, 2e-6)
    gate_up = torch.cat([x, residual], dim=1)
    assert_near(silu_mul(gate_up), torch.nn.functional.silu(x.double()) * residual, 2e-6)


def test_silu_of_extreme_values(level: str) -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, -20.0, 0.0, 20.0, 88.0, 1e30]])
    found = silu_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(found, torch.nn.functional.silu(gate), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128, 80])
@pytest.mark.parametrize("num_heads", [2, 6])
def test_rotary_and_attention(level: str, dtype: torch.dtype, head_dim: int, num_heads: int) -> None:
    heads = Heads(num_heads, 2, head_dim)
    pools = [KVLayout(2, 2, head_dim, 32, dtype).allocate(40) for _ in range(2)]
    for pool in pools:
        pool.normal_()
    tables = [[3, 7, 1], [0], torch.arange(10, 40).tolist(), [9, 2]]
    batch = AttentionBatch.build(tables, [70, 5, 900, 33], [70, 1, 40, 33], 32)
    cos_sin = cos_sin_table(1e4 ** -(torch.arange(0, head_dim, 2) / head_dim), 1024)
    norm = QKNorm(torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5, 1e-6)
    qkv = torch.randn(batch.num_tokens, heads.row_width)
    pools[1].copy_(pools[0])
    q = rotary_kv_write(qkv, cos_sin, batch, pools[0], 1, heads, norm)
    expected = rotary_reference.rotary_kv_write(qkv, cos_sin, batch, pools[1], 1, heads, norm)
    assert_near(q, expected.double(), 1e-5)
    written, wanted = (gather(pool, 1, head_dim, torch.arange(40)) for pool in pools)
    for found, exact in zip(written, wanted, strict=True):
        assert_near(found.float(), exact.double(), 1e-5 if dtype == torch.float32 else 2**-7)
    assert torch.equal(pools[0][:, 0], pools[1][:, 0])
    out = paged_attention(q, pools[0], 1, batch, head_dim**-0.5)
    wide = attention_reference.paged_attention(q, pools[0], 1, batch, head_dim**-0.5).double()
    assert_near(out, wide, TOLERANCE if "bf16" in level and dtype == torch.bfloat16 else 1e-5)


def test_attention_with_large_scores(level: str) -> None:
    """Maxima that grow, shrink and tie along the context."""
    pool = KVLayout(1, 1, 64, 16, torch.float32).allocate(40)
    pool.normal_().mul_(8)
    batch = AttentionBatch.build([torch.randperm(40).tolist()], [640], [90], 16)
    q = torch.randn(90, 3, 64) * 8
    found = paged_attention(q, pool, 0, batch, 1.0)
    assert_near(found, attention_reference.paged_attention(q.double().float(), pool, 0, batch, 1.0).double(), 1e-4)


def test_argmax_and_top_k(level: str) -> None:
    logits = torch.randn(5, 1003).mul(4).round()  # many ties
    assert torch.equal(argmax(logits), reference.argmax(logits))
    for k in (1, 3, 64, 1003):
        for found, wanted in zip(top_k(logits, k), reference.top_k(logits, k), strict=True):
            assert torch.equal(found, wanted)
