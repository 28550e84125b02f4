"""Each op on the GPU against its reference, on fresh random inputs. Memory that torch hands out is NaN meanwhile."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ....kernels.cuda_config import Arithmetic, CudaConfig, config_for
from ....kernels.kv_copy import triton as kv_copy
from ....kernels.kv_layout import KVLayout, KVOrder, reordered
from ....kernels.linear import triton as linear_kernels
from ....kernels.linear.rows import pack_rows
from ....kernels.moe import Experts
from ....kernels.moe import triton as moe_kernels
from ....kernels.paged_attention import reference as attention_reference
from ....kernels.paged_attention import triton as attention_kernels
from ....kernels.rms_norm import reference as norm_reference
from ....kernels.rms_norm import triton as norm_kernels
from ....kernels.rotary import Heads, QKNorm, cos_sin_table
from ....kernels.rotary import reference as rotary_reference
from ....kernels.rotary import triton as rotary_kernels
from ....kernels.sampling import RowSampling, filters
from ....kernels.sampling import triton as sampling_kernels
from ....kernels.silu_mul import reference as silu_reference
from ....kernels.silu_mul import triton as silu_kernels
from ...engine.device.cuda_device import CudaDevice
from ...engine.kv_cache import KVCache
from .inputs import FORMS, batch_of, normal, pool_of, relative_error, unequal, weight_of
from .results import Correctness, going_on
from .transfers import check_transfers

LLAMA, SMOLLM2, QWEN3_MOE, ONE_EACH = Heads(32, 8, 128), Heads(9, 3, 64), Heads(32, 4, 128), Heads(8, 8, 128)
_BF16 = 1e-2


def check_ops(config: CudaConfig) -> Iterator[Correctness]:
    """All comparisons. One that cannot be made is a wrong one, and the others go on."""
    parts: list[tuple[str, Iterator[Correctness]]] = [
        ("rms_norm, silu_mul", _rows()),
        *(("rotary", _rotary(heads)) for heads in (LLAMA, SMOLLM2)),
        *(("attention", _attention(config, heads)) for heads in (LLAMA, SMOLLM2, QWEN3_MOE, ONE_EACH)),
        ("attention", _float32_attention(config)),
        ("attention, kv_copy", _far_blocks(config)),
        ("deterministic", _deterministic(config)),
        ("kv_copy", _copies()),
        ("kv_copy", _transfers()),
        ("linear", _linear(config)),
        ("linear", _fused_linear(config)),
        *(("moe", _experts(form, config)) for form in FORMS),
        ("sampling", _sampling()),
    ]
    with _poisoned_memory():
        for op, part in parts:
            yield from going_on(part, lambda error, op=op: Correctness(op, error, math.nan, 0.0))  # type: ignore[misc]


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that torch has in no deterministic form
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def _rows() -> Iterator[Correctness]:
    x, residual, weight = normal(333, 4096), normal(333, 4096), torch.rand(4096, device="cuda") + 0.5
    wanted = norm_reference.rms_norm(x, weight, 1e-5)
    yield Correctness("rms_norm", "333 x 4096", relative_error(norm_kernels.rms_norm(x, weight, 1e-5), wanted), _BF16)
    found, total = norm_kernels.add_rms_norm(x, residual, weight, 1e-5)
    wanted, wanted_total = norm_reference.add_rms_norm(x, residual, weight, 1e-5)
    error = max(relative_error(found, wanted), relative_error(total, wanted_total))
    yield Correctness("rms_norm", "with residual", error, _BF16)
    gate_up = normal(77, 2 * 14336)
    error = relative_error(silu_kernels.silu_mul(gate_up), silu_reference.silu_mul(gate_up))
    yield Correctness("silu_mul", "77 x 14336", error, _BF16)


def _rotary(heads: Heads) -> Iterator[Correctness]:
    batch = batch_of([100, 17, 33], [40, 17, 1], 20)
    cos_sin = cos_sin_table(1e4 ** -(torch.arange(0, heads.head_dim, 2) / heads.head_dim), 128).cuda()
    weights = torch.rand(2, heads.head_dim, device="cuda") + 0.5
    for norm in (None, QKNorm(weights[0], weights[1], 1e-6)):
        qkv = normal(58, heads.row_width)
        pool = pool_of(heads, 20, 2)
        grouped = reordered(pool, heads.head_dim, KVOrder.GROUPED)
        q = rotary_kernels.rotary_kv_write(qkv, cos_sin, batch, pool, 1, heads, norm)
        wanted = rotary_reference.rotary_kv_write(qkv, cos_sin, batch, grouped, 1, heads, norm)
        written = reordered(grouped, heads.head_dim, KVOrder.PLAIN)
        error = max(relative_error(q, wanted), relative_error(pool, written))
        case = f"heads {heads.num_heads}/{heads.num_kv_heads} of {heads.head_dim}{', norms' if norm else ''}"
        yield Correctness("rotary", case, error, _BF16)


def _attention(config: CudaConfig, heads: Heads) -> Iterator[Correctness]:
    pool = pool_of(heads, 700, 2)
    cases = {
        "decode": ([1, 16, 17, 1000, 4097], [1] * 5, 0),
        "drafts": ([5, 130, 2000], [4, 5, 3], 5),
        "extend": ([129, 300, 1, 1500], [129, 77, 1, 500], 0),
        "decodes and a chunk": ([900, 64, 700], [1, 1, 300], 0),
    }
    for case, (contexts, queries, short_len) in cases.items():
        batch = batch_of(contexts, queries, 700)
        if short_len:
            batch = dataclasses.replace(batch, num_short=len(contexts), max_short_len=short_len)
        q = normal(sum(queries), heads.num_heads, heads.head_dim)
        scale = heads.head_dim**-0.5
        found = attention_kernels.paged_attention(q, pool, 1, batch, scale, config)
        wanted = attention_reference.paged_attention(
            q, reordered(pool, heads.head_dim, KVOrder.GROUPED), 1, batch, scale
        )
        name = f"{case}, heads {heads.num_heads}/{heads.num_kv_heads} of {heads.head_dim}"
        yield Correctness("attention", name, relative_error(found, wanted), _BF16)


def _float32_attention(config: CudaConfig) -> Iterator[Correctness]:
    pool, batch = pool_of(LLAMA, 80, 1, torch.float32), batch_of([300, 70], [40, 1], 80)
    q = normal(41, 32, 128, dtype=torch.float32)
    found = attention_kernels.paged_attention(q, pool, 0, batch, 0.088, config)
    wanted = attention_reference.paged_attention(q, reordered(pool, 128, KVOrder.GROUPED), 0, batch, 0.088)
    yield Correctness("attention", "float32", relative_error(found, wanted), 1e-4)


def _far_blocks(config: CudaConfig) -> Iterator[Correctness]:
    """Blocks beyond 2^31 elements of a pool."""
    heads, layers = LLAMA, 32
    elements = layers * 2 * heads.num_kv_heads * 16 * heads.head_dim
    num_blocks = 2**31 // elements + 40
    shape = (num_blocks, layers, 2, heads.num_kv_heads, 16 * heads.head_dim)
    pool = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    near = pool_of(heads, 40, layers)
    pool[-40:] = near
    batch = batch_of([600], [9], 40)
    q = normal(9, heads.num_heads, heads.head_dim)
    wanted = attention_kernels.paged_attention(q, near, 31, batch, 0.088, config)
    far = dataclasses.replace(batch, block_tables=batch.block_tables + (num_blocks - 40))
    found = attention_kernels.paged_attention(q, pool, 31, far, 0.088, config)
    copied = torch.empty_like(near[:3])
    kv_copy.gather_blocks(pool, torch.tensor([num_blocks - 40, num_blocks - 1], device="cuda"), copied)
    error = max(unequal(found, wanted), unequal(copied[:2], near[[0, 39]]))
    yield Correctness("attention, kv_copy", "beyond 2^31 elements", error, 0.0)


def _deterministic(config: CudaConfig) -> Iterator[Correctness]:
    fixed = config_for(config.architecture, Arithmetic.DETERMINISTIC, config.num_processors)
    pool, whole = pool_of(LLAMA, 400, 1), batch_of([3000], [3000], 400)
    q = normal(3000, 32, 128)
    everything = attention_kernels.paged_attention(q, pool, 0, whole, 0.088, fixed)
    table = [whole.block_tables[0].tolist()]
    errors = []
    for first, last in ((0, 1), (1023, 1024), (2999, 3000), (1000, 1777)):
        part = whole.build(table, [last], [last - first], 16, "cuda")
        found = attention_kernels.paged_attention(q[first:last], pool, 0, part, 0.088, fixed)
        errors.append(unequal(found, everything[first:last]))
    wanted = attention_reference.paged_attention(q, reordered(pool, 128, KVOrder.GROUPED), 0, whole, 0.088)
    yield Correctness("attention", "deterministic", relative_error(everything, wanted), _BF16)
    yield Correctness("attention", "deterministic: a decode and a chunk are the prefill's bits", max(errors), 0.0)
    for form in FORMS:
        packed, x = pack_rows(weight_of(form, 1000, 2048), "cuda"), normal(200, 2048)
        many = linear_kernels.linear(x, packed, None, None, None, fixed)
        one = linear_kernels.linear(x[77:78], packed, None, None, None, fixed)
        yield Correctness("linear", f"{form}, deterministic: a row's bits alone", unequal(one, many[77:78]), 0.0)


def _copies() -> Iterator[Correctness]:
    pool = pool_of(SMOLLM2, 50, 3)
    before = pool.clone()
    blocks, free = torch.tensor([3, 49, 7], device="cuda"), torch.tensor([10, 0, 20], device="cuda")
    staging = torch.empty_like(pool[:3])
    kv_copy.gather_blocks(pool, blocks, staging)
    yield Correctness("kv_copy", "gather", unequal(staging, before[blocks]), 0.0)
    kv_copy.scatter_blocks(staging, pool, free)
    yield Correctness("kv_copy", "scatter", unequal(pool[free], before[blocks]), 0.0)
    kv_copy.copy_blocks(pool, blocks, free + 5)
    yield Correctness("kv_copy", "blocks", unequal(pool[free + 5], before[blocks]), 0.0)
    kv_copy.copy_block_prefix(pool, 3, 40, 11, 64)
    rows, old = pool[40].view(3, 2, 3, 16, 64), before.view(50, 3, 2, 3, 16, 64)
    error = max(unequal(rows[:, :, :, :11], old[3, :, :, :, :11]), unequal(rows[:, :, :, 11:], old[40, :, :, :, 11:]))
    yield Correctness("kv_copy", "prefix of a block", error, 0.0)


def _transfers() -> Iterator[Correctness]:
    device = CudaDevice(torch.device("cuda"))
    kv_cache = KVCache(KVLayout(3, 8, 128, 16, torch.bfloat16, KVOrder.PLAIN), 64, device.torch_device)
    kv_cache.pool.normal_()
    yield from check_transfers(device, kv_cache)


def _linear(config: CudaConfig) -> Iterator[Correctness]:
    for form in FORMS:
        weight = weight_of(form, 1000, 2080)
        packed = pack_rows(weight, "cuda")
        values = weight.dequantise(torch.float32 if form == "fp8" else torch.bfloat16).double()
        for rows in (1, 16, 50, 300):
            x, residual, bias = normal(rows, 2080), normal(rows, 1000), torch.randn(1000, device="cuda")
            wanted = x.double() @ values.T + bias + residual.double()
            error = relative_error(linear_kernels.linear(x, packed, bias, residual, None, config), wanted)
            yield Correctness("linear", f"{form}, {rows} rows", error, _BF16)
        found = linear_kernels.linear(x, packed, None, None, torch.float32, config)
        error = relative_error(found, x.double() @ values.T)
        yield Correctness("linear", f"{form}, float32 results", error, _BF16)


def _fused_linear(config: CudaConfig) -> Iterator[Correctness]:
    for form in FORMS:
        weight, norm = weight_of(form, 2048, 1024), torch.rand(1024, device="cuda") + 0.5
        packed, x = pack_rows(weight, "cuda"), normal(5, 1024)
        product = norm_reference.rms_norm(x, norm, 1e-5) @ weight.dequantise(torch.float32).T
        found = linear_kernels.norm_linear(x, norm, 1e-5, packed, None, config)
        yield Correctness("linear", f"{form}, with its norm", relative_error(found, product), 2e-2)
        found = linear_kernels.gated_linear(x, norm, 1e-5, packed, config)
        error = relative_error(found, silu_reference.silu_mul(product))
        yield Correctness("linear", f"{form}, norm, gate and up", error, 2e-2)


def _experts(form: str, config: CudaConfig) -> Iterator[Correctness]:
    num_experts, hidden, inner, tokens = 16, 512, 384, 100
    weights = [(weight_of(form, 2 * inner, hidden), weight_of(form, hidden, inner)) for _ in range(num_experts)]
    packed = [(pack_rows(up, "cuda"), pack_rows(down, "cuda")) for up, down in weights]
    experts = Experts([up for up, _ in packed], [down for _, down in packed], 4, True)
    x, router = normal(tokens, hidden), torch.randn(tokens, num_experts, device="cuda")
    shares, chosen = router.double().softmax(-1).topk(4)
    shares = shares / shares.sum(-1, keepdim=True)
    wanted = torch.zeros(tokens, hidden, device="cuda", dtype=torch.float64)
    for expert, (up, down) in enumerate(weights):
        gated = silu_reference.silu_mul(x.float() @ up.dequantise(torch.float32).T)
        part = (gated @ down.dequantise(torch.float32).T).double()
        wanted += part * torch.where(chosen == expert, shares, 0.0).sum(-1, keepdim=True)
    found = moe_kernels.moe_mlp(x, router, experts, config)
    yield Correctness("moe", f"{form}, 4 of 16 experts", relative_error(found, wanted), 2e-2)


def _sampling() -> Iterator[Correctness]:
    logits = torch.randn(32, 128_256, device="cuda") * 3
    logits[0, 99] = logits[0, 128_255] = 50.0
    yield Correctness("sampling", "argmax", unequal(sampling_kernels.argmax(logits)[1:], logits.argmax(-1)[1:]), 0.0)
    yield Correctness("sampling", "argmax of equals", float(sampling_kernels.argmax(logits)[0] != 99), 0.0)
    rows = RowSampling(
        temperature=torch.tensor([0.0, 0.7, 1.0, 1.3] * 8, device="cuda"),
        top_k=torch.tensor([0, 20, 0, 50] * 8, device="cuda", dtype=torch.int32),
        top_p=torch.tensor([1.0, 0.95, 0.8, 1.0] * 8, device="cuda"),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.1] * 8, device="cuda"),
        uniform=torch.rand(32, device="cuda"),
    )
    different = (sampling_kernels.sample(logits, rows) != filters.sample(logits, rows)).float().mean()
    # float32 against float64: a draw may fall on the other side of an edge now and then
    yield Correctness("sampling", "temperature, top-k, top-p, min-p: rows that differ", float(different), 0.07)
    token_ids = torch.randint(0, 4, (40,), device="cuda")
    sampled, starts = torch.randint(0, 4, (40,), device="cuda"), torch.arange(0, 41, 5, device="cuda").int()
    found = sampling_kernels.verify_drafts(sampled, token_ids, starts, 5)
    error = unequal(found, filters.verify_drafts(sampled, token_ids, starts))
    yield Correctness("sampling", "verification of drafts", error, 0.0)
