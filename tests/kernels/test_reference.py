"""The plain torch versions against float64 and dense computations."""

from __future__ import annotations

import pytest
import torch

from sessile.kernels.attention_batch import AttentionBatch
from sessile.kernels.decoder import DecoderLayer, DecoderWeights, decoder
from sessile.kernels.embedding import embedding
from sessile.kernels.kv_copy import copy_block_prefix, copy_blocks
from sessile.kernels.kv_layout import KVLayout, gather
from sessile.kernels.linear import DenseWeight, Int4Weight, Int8Weight, concatenate, linear, pack
from sessile.kernels.moe import Experts, moe_mlp
from sessile.kernels.paged_attention import paged_attention
from sessile.kernels.rms_norm import add_rms_norm, rms_norm
from sessile.kernels.rotary import Heads, QKNorm, cos_sin_table, rotary_kv_write
from sessile.kernels.sampling import argmax, top_k
from sessile.kernels.silu_mul import silu_mul


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_rms_norm() -> None:
    x, residual, weight = torch.randn(5, 64), torch.randn(5, 64), torch.randn(64)
    wide = (x + residual).double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(normed.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))


def test_silu_mul() -> None:
    x = torch.randn(3, 32)
    gate, up = x.double().chunk(2, dim=1)
    torch.testing.assert_close(silu_mul(x).double(), gate * torch.sigmoid(gate) * up, rtol=1e-5, atol=1e-6)


def _int4(n: int, k: int) -> Int4Weight:
    q = torch.randint(0, 16, (n, k), dtype=torch.uint8)
    return Int4Weight(q, torch.rand(n, k // 32) * 0.02, torch.randn(n, k // 32) * 0.1)


def test_quantised_weights_mean_what_they_say() -> None:
    w4 = _int4(7, 64)
    scale, minimum = (t.float().repeat_interleave(32, 1) for t in (w4.scale, w4.minimum))
    torch.testing.assert_close(w4.dequantise(torch.float32), w4.q.float() * scale + minimum, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(w4.dequantise().float(), w4.dequantise(torch.float32), rtol=2**-8, atol=1e-7)
    w8 = Int8Weight(torch.randint(-128, 128, (7, 64), dtype=torch.int8), torch.rand(7))
    assert torch.equal(w8.dequantise(torch.float32), w8.q.float() * w8.scale.float().repeat_interleave(32, 1))


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4"])
def test_linear_and_embedding(form: str) -> None:
    n, k = 40, 64
    weight = {
        "float32": DenseWeight(torch.randn(n, k)),
        "bfloat16": DenseWeight(torch.randn(n, k).bfloat16()),
        "int8": Int8Weight(torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n, k // 32) * 0.01),
        "int4": _int4(n, k),
    }[form]
    values = weight.dequantise(torch.float32 if form == "float32" else torch.bfloat16).double()
    packed = pack(weight)
    x = torch.randn(5, k).bfloat16().float()  # exact at every level: where there are BF16 products, x is rounded to it
    bias, residual = torch.randn(n), torch.randn(5, n)
    expected = x.double() @ values.T + bias + residual
    torch.testing.assert_close(linear(x, packed, bias, residual).double(), expected, rtol=1e-2, atol=1e-3)
    ids = torch.tensor([3, 39, 0, 3])
    assert torch.equal(embedding(ids, packed).double(), values[ids])


def test_concatenate_keeps_one_form_and_mixes_to_dense() -> None:
    a, b = _int4(4, 32), _int4(2, 32)
    both = concatenate([a, b])
    assert isinstance(both, Int4Weight)
    assert torch.equal(both.dequantise(), torch.cat([a.dequantise(), b.dequantise()]))
    mixed = concatenate([a, DenseWeight(torch.randn(3, 32))])
    assert isinstance(mixed, DenseWeight)
    assert torch.equal(mixed.tensor[:4], a.dequantise())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rotary_write_and_attention_over_a_ragged_batch(dtype: torch.dtype, head_dim: int) -> None:
    heads = Heads(6, 2, head_dim)
    layout = KVLayout(2, 2, head_dim, 16, dtype)
    pool = layout.allocate(12)
    pool.fill_(float("nan"))
    tables, contexts, queries = [[3, 7, 1], [0], [9, 2]], [37, 5, 16], [37, 5, 16]
    batch = AttentionBatch.build(tables, contexts, queries, 16)
    cos_sin = cos_sin_table(1e4 ** -(torch.arange(0, head_dim, 2) / head_dim), 64)
    norm = QKNorm(torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5, 1e-6)
    qkv = torch.randn(58, heads.row_width)
    q = rotary_kv_write(qkv, cos_sin, batch, pool, 1, heads, norm)
    out = paged_attention(q, pool, 1, batch, head_dim**-0.5)

    at = 0
    for table, context in zip(tables, contexts, strict=True):
        rows = qkv[at : at + context].double().view(context, 10, head_dim)
        keys = _rotated(rows[:, 6:8], norm.k_weight)
        queries_wide = _rotated(rows[:, :6], norm.q_weight)
        stored_k, stored_v = gather(pool, 1, head_dim, torch.tensor(table))
        torch.testing.assert_close(stored_k[:context].double(), keys, rtol=1e-2, atol=1e-4)
        assert torch.equal(stored_v[:context], rows[:, 8:].to(dtype))
        expected = torch.nn.functional.scaled_dot_product_attention(
            queries_wide.transpose(0, 1),
            keys.transpose(0, 1).repeat_interleave(3, 0),
            rows[:, 8:].transpose(0, 1).repeat_interleave(3, 0),
            is_causal=True,
        )
        found = out[at : at + context].double()
        torch.testing.assert_close(found, expected.transpose(0, 1).flatten(1), rtol=1e-2, atol=2e-2)
        at += context


def _rotated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    head_dim = x.shape[-1]
    x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    frequencies = 1e4 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(x.shape[0], dtype=torch.float64), frequencies)
    turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1).contiguous()) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    return torch.cat([turned.real, turned.imag], -1)


def test_copies() -> None:
    layout = KVLayout(2, 3, 64, 32, torch.bfloat16)
    pool = layout.allocate(6)
    pool.copy_(torch.randn(pool.shape))
    assert pool[0].numel() * 2 == layout.block_bytes
    copy_blocks(pool, torch.tensor([1, 2]), torch.tensor([4, 5]))
    assert torch.equal(pool[4:6], pool[1:3])
    for tokens in (0, 1, 15, 16, 21, 32):
        pool[0] = 0
        copy_block_prefix(pool, 1, 0, tokens, 64)
        source, copied = (gather(pool, 1, 64, torch.tensor([b])) for b in (1, 0))
        for wanted, found in zip(source, copied, strict=True):
            assert torch.equal(wanted[:tokens], found[:tokens])


def test_argmax_and_top_k_take_the_smaller_index_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert argmax(logits).tolist() == [1, 0]
    values, ids = top_k(logits, 3)
    assert ids.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert values.tolist() == [[2, 2, 1], [5, 5, 5]]


def test_moe_equals_the_sum_over_experts() -> None:
    x, router = torch.randn(5, 32), torch.randn(5, 4)
    gate_up, down = torch.randn(4, 64, 32), torch.randn(4, 32, 32)
    experts = Experts([pack(DenseWeight(w)) for w in gate_up], [pack(DenseWeight(w)) for w in down], 2, True)
    weights, chosen = router.double().softmax(-1).topk(2)
    weights /= weights.sum(-1, keepdim=True)
    expected = torch.zeros(5, 32, dtype=torch.float64)
    for row in range(5):
        for weight, expert in zip(weights[row], chosen[row].tolist(), strict=True):
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            expected[row] += weight * (down[expert].double() @ (gate * torch.sigmoid(gate) * up))
    torch.testing.assert_close(moe_mlp(x, router, experts).double(), expected, rtol=1e-4, atol=1e-4)


def test_decoder_runs_in_chunks_as_at_once() -> None:
    heads, hidden, inner = Heads(4, 2, 64), 64, 96
    layers = [
        DecoderLayer(
            torch.rand(hidden),
            pack(DenseWeight(torch.randn(heads.row_width, hidden) * 0.1)),
            pack(DenseWeight(torch.randn(hidden, 256) * 0.1)),
            torch.rand(hidden),
            pack(DenseWeight(torch.randn(2 * inner, hidden) * 0.1)),
            pack(DenseWeight(torch.randn(hidden, inner) * 0.1)),
        )
        for _ in range(2)
    ]
    cos_sin = cos_sin_table(1e4 ** -(torch.arange(0, 64, 2) / 64), 64)
    weights = DecoderWeights(layers, torch.rand(hidden), cos_sin, heads, 0.125, 1e-5)
    pool = KVLayout(2, 2, 64, 16, torch.float32).allocate(4)
    x = torch.randn(20, hidden)
    whole = decoder(x, weights, AttentionBatch.build([[2, 0]], [20], [20], 16), pool)
    pool.zero_()
    first = decoder(x[:13], weights, AttentionBatch.build([[1, 3]], [13], [13], 16), pool)
    second = decoder(x[13:], weights, AttentionBatch.build([[1, 3]], [20], [7], 16), pool)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-4, atol=1e-5)
