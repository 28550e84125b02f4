"""Linear layers in every weight form, and the mixture of experts, interpreted."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from closeness import assert_close

from sessile.kernels.cuda_config import Arithmetic, Tile, config_for
from sessile.kernels.linear import DenseWeight, Fp8Weight, Int4Weight, Int8Weight, Weight
from sessile.kernels.linear import triton as on_gpu
from sessile.kernels.linear.rows import dequantise_rows, pack_rows
from sessile.kernels.moe import Experts
from sessile.kernels.moe import reference as moe_in_torch
from sessile.kernels.moe import triton as moe_on_gpu
from sessile.kernels.rms_norm.reference import rms_norm
from sessile.kernels.silu_mul import silu_mul

SMALL = Tile(rows=16, columns=32, inner=64, num_warps=4, num_stages=2)
CONFIG = dataclasses.replace(
    config_for(90, Arithmetic.FAST), skinny=SMALL, gated=SMALL, wide=SMALL, experts_few=SMALL, experts_many=SMALL
)
DETERMINISTIC = dataclasses.replace(CONFIG, arithmetic=Arithmetic.DETERMINISTIC)
FORMS = ["dense", "int8", "int4", "fp8"]


def _weight(form: str, n: int, k: int) -> Weight:
    if form == "dense":
        return DenseWeight(torch.randn(n, k).bfloat16())
    if form == "int8":
        return Int8Weight(torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n, k // 32) * 0.01)
    if form == "int4":
        q = torch.randint(0, 16, (n, k), dtype=torch.uint8)
        return Int4Weight(q, torch.rand(n, k // 32) * 0.1, torch.randn(n, k // 32))
    return Fp8Weight(torch.randn(n, k).to(torch.float8_e4m3fn), torch.rand(n) + 0.5)


@pytest.mark.parametrize("form", FORMS)
def test_packed_rows_keep_their_values(form: str) -> None:
    weight = _weight(form, 5, 96)
    packed = pack_rows(weight, "cpu")
    assert torch.equal(dequantise_rows(packed), weight.dequantise())
    ids = torch.tensor([4, 0, 4])
    assert torch.equal(dequantise_rows(packed, ids), weight.dequantise()[ids])
    assert torch.equal(packed.dequantise(), weight.dequantise().float())


@pytest.mark.parametrize("form", FORMS[1:])
def test_dequantise(form: str) -> None:
    packed = pack_rows(_weight(form, 40, 160), "cpu")
    allowed, ids = 5e-3 if form == "fp8" else 1e-3, torch.tensor([39, 0, 39])
    assert_close(on_gpu.dequantise(packed), dequantise_rows(packed), allowed)
    assert_close(on_gpu.dequantise(packed, ids), dequantise_rows(packed, ids), allowed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "width"), [(1, 96), (19, 128)])
def test_linear(form: str, rows: int, width: int) -> None:
    weight = _weight(form, 40, width)
    x, bias, residual = torch.randn(rows, width).bfloat16(), torch.randn(40), torch.randn(rows, 40).bfloat16()
    values = weight.dequantise(torch.float32 if form == "fp8" else torch.bfloat16).double()
    packed = pack_rows(weight, "cpu")
    found = on_gpu.run_linear(x, packed, bias, residual, torch.float32, SMALL)
    assert_close(found, x.double() @ values.T + bias + residual, 1e-3)
    assert on_gpu.run_linear(x, packed, None, None, torch.bfloat16, SMALL).dtype == torch.bfloat16


@pytest.mark.parametrize("form", ["dense", "fp8"])
def test_norms_are_fused_into_linear_layers(form: str) -> None:
    x, norm = torch.randn(2, 160).bfloat16(), torch.rand(160) + 0.5
    weight = _weight(form, 48, 160)
    values = weight.dequantise(torch.float32 if form == "fp8" else torch.bfloat16).double()
    product = rms_norm(x, norm, 1e-5).double() @ values.T
    packed = pack_rows(weight, "cpu")
    assert_close(on_gpu.norm_linear(x, norm, 1e-5, packed, None, CONFIG), product, 1e-2)
    assert_close(on_gpu.gated_linear(x, norm, 1e-5, packed, CONFIG), silu_mul(product.float()), 1.5e-2)


def test_rows_of_a_deterministic_linear_layer_do_not_depend_on_their_number() -> None:
    packed = pack_rows(_weight("int4", 40, 96), "cpu")
    x = torch.randn(20, 96).bfloat16()
    many = on_gpu.linear(x, packed, None, None, None, DETERMINISTIC)
    assert torch.equal(on_gpu.linear(x[7:8], packed, None, None, None, DETERMINISTIC), many[7:8])


@pytest.mark.parametrize("form", FORMS)
def test_experts(form: str) -> None:
    tokens, hidden, inner, num_experts = 9, 64, 96, 5
    gate_up = [_weight(form, 2 * inner, hidden) for _ in range(num_experts)]
    down = [_weight(form, hidden, inner) for _ in range(num_experts)]
    experts = Experts([pack_rows(w, "cpu") for w in gate_up], [pack_rows(w, "cpu") for w in down], 2, True)
    x, router = torch.randn(tokens, hidden).bfloat16(), torch.randn(tokens, num_experts)
    router[:, 3] = -20  # nobody chooses this one
    found = moe_on_gpu.moe_mlp(x, router, experts, CONFIG)
    assert_close(found, moe_in_torch.moe_mlp(x.float(), router, experts), 1e-2)


def test_experts_of_two_forms_are_refused() -> None:
    mixed = (pack_rows(_weight("dense", 32, 32), "cpu"), pack_rows(_weight("int8", 32, 32), "cpu"))
    with pytest.raises(ValueError, match="one form"):
        moe_on_gpu.ExpertTable.of(mixed)
