"""Each op's speed as a share of what the GPU can do at best, with the goals of this project."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import torch

from ....kernels import kv_copy, rms_norm, silu_mul
from ....kernels.cuda_config import CudaConfig
from ....kernels.linear import DenseWeight, pack
from ....kernels.linear import triton as linear_kernels
from ....kernels.paged_attention.triton import paged_attention
from ....kernels.rotary import Heads, cos_sin_table, rotary_kv_write
from ....kernels.sampling import RowSampling, argmax, sample
from ...engine.device.cuda_device import CudaDevice
from ...engine.device.staged_blocks import StagedBlocks
from ...engine.kv_cache import KVCache
from .inputs import batch_of, normal, pool_of, weight_of
from .results import Speed, going_on
from .timing import Ceilings, graph_seconds, seconds

HEADS = Heads(32, 8, 128)  # of Llama 3 8B
COPY, MATMUL, BUS = "copy bandwidth", "matmul rate", "pinned copy"


def measure_ops(config: CudaConfig, ceilings: Ceilings) -> Iterator[Speed]:
    """All ops, in sizes that do not fit in the cache."""
    parts: list[tuple[str, Iterator[Speed]]] = [
        ("attention", _decode(config, ceilings, sequences=64, context=4096, goal=0.75)),
        ("attention", _decode(config, ceilings, sequences=1, context=32_768, goal=0.60)),
        ("attention", _extend(config, ceilings)),
        ("kv_copy", _copies(ceilings)),
        ("rms_norm, silu_mul, rotary", _rows(ceilings)),
        ("linear", _few_rows(config, ceilings)),
        ("sampling", _sampling()),
    ]
    for op, part in parts:
        yield from going_on(part, lambda error, op=op: Speed(op, error, math.nan, None, "", 1.0))  # type: ignore[misc]


def decode_variants(config: CudaConfig, sequences: int, context: int, layers: int) -> list[Callable[[], object]]:
    """Decode attention over each of ``layers`` layers of one pool."""
    blocks = sequences * context // 16
    pool, batch = pool_of(HEADS, blocks, layers), batch_of([context] * sequences, [1] * sequences, blocks)
    q = normal(sequences, HEADS.num_heads, HEADS.head_dim)
    return [functools.partial(paged_attention, q, pool, layer, batch, 0.088, config) for layer in range(layers)]


def extend_variants(config: CudaConfig, sequences: int, tokens: int) -> list[Callable[[], object]]:
    """Attention of whole prompts."""
    blocks = sequences * tokens // 16
    pool, batch = pool_of(HEADS, blocks), batch_of([tokens] * sequences, [tokens] * sequences, blocks)
    q = normal(sequences * tokens, HEADS.num_heads, HEADS.head_dim)
    return [functools.partial(paged_attention, q, pool, 0, batch, 0.088, config)]


def extend_flops(sequences: int, tokens: int) -> float:
    """Two products over the lower triangle."""
    return 2.0 * sequences * tokens**2 * HEADS.num_heads * HEADS.head_dim


def kv_bytes(sequences: int, context: int) -> int:
    """Keys and values of one layer in bfloat16."""
    return sequences * context * HEADS.num_kv_heads * HEADS.head_dim * 2 * 2


def _decode(config: CudaConfig, ceilings: Ceilings, sequences: int, context: int, goal: float) -> Iterator[Speed]:
    layers = 2 if sequences > 1 else 8
    time = graph_seconds(decode_variants(config, sequences, context, layers))
    share = kv_bytes(sequences, context) / time / ceilings.copy
    yield Speed("attention", f"decode, {sequences} x {context} tokens", time, share, COPY, goal)


def _extend(config: CudaConfig, ceilings: Ceilings) -> Iterator[Speed]:
    time = seconds(extend_variants(config, 4, 4096))
    share = extend_flops(4, 4096) / time / ceilings.matmul
    yield Speed("attention", "extend, 4 x 4096 tokens", time, share, MATMUL, 0.45)


def _copies(ceilings: Ceilings) -> Iterator[Speed]:
    pool = pool_of(HEADS, 700, 32)
    order = torch.randperm(700)
    blocks = order[:256].cuda()
    staging = torch.empty_like(pool[:256])
    time = seconds([lambda: kv_copy.gather_blocks(pool, blocks, staging)])
    yield Speed("kv_copy", "gather of 256 blocks", time, 2 * staging.nbytes / time / ceilings.copy, COPY, 0.80)
    time = seconds([lambda: kv_copy.scatter_blocks(staging, pool, blocks)])
    yield Speed("kv_copy", "scatter of 256 blocks", time, 2 * staging.nbytes / time / ceilings.copy, COPY, 0.80)
    yield from _moves(ceilings, pool, order[:256].tolist())


def _moves(ceilings: Ceilings, pool: torch.Tensor, blocks: list[int]) -> Iterator[Speed]:
    """Across the bus, through the engine's own staging buffers, until the last block is there."""
    from ....kernels.kv_layout import KVLayout, KVOrder

    device = CudaDevice(torch.device("cuda"))
    cache = KVCache(KVLayout(32, 8, 128, 16, torch.bfloat16, KVOrder.PLAIN), 1, device.torch_device)
    cache.pool, cache.num_blocks = pool, pool.shape[0]
    staged = StagedBlocks(cache, device)

    def leave() -> None:
        staged.copy_out(blocks, lambda start, found: None)
        staged.settle()

    def land() -> None:
        for start in range(0, len(blocks), staged.at_once):
            with staged.landing(blocks[start : start + staged.at_once]) as landing:
                landing.land(len(landing.buffers))

    num_bytes = len(blocks) * staged.block_bytes
    for name, work in (("to the host", leave), ("from the host", land)):
        time = seconds([work], repeat=8)
        yield Speed("kv_copy", f"256 blocks {name}", time, num_bytes / time / ceilings.bus, BUS, 0.80)
    staged.close()


def _rows(ceilings: Ceilings) -> Iterator[Speed]:
    tokens, weight = 16_384, torch.rand(4096, device="cuda")
    x, residual = normal(tokens, 4096), normal(tokens, 4096)
    time = seconds([lambda: rms_norm.rms_norm(x, weight, 1e-5)])
    yield Speed("rms_norm", "16384 x 4096", time, 2 * x.nbytes / time / ceilings.copy, COPY, 0.80)
    time = seconds([lambda: rms_norm.add_rms_norm(x, residual, weight, 1e-5)])
    yield Speed("rms_norm", "with residual", time, 4 * x.nbytes / time / ceilings.copy, COPY, 0.80)
    gate_up = normal(8192, 2 * 14_336)
    time = seconds([lambda: silu_mul.silu_mul(gate_up)])
    yield Speed("silu_mul", "8192 x 14336", time, 1.5 * gate_up.nbytes / time / ceilings.copy, COPY, 0.80)
    qkv, batch, pool = normal(tokens, HEADS.row_width), batch_of([tokens], [tokens], 1024), pool_of(HEADS, 1024)
    cos_sin = cos_sin_table(5e5 ** -(torch.arange(0, 128, 2) / 128), tokens).cuda()
    time = seconds([lambda: rotary_kv_write(qkv, cos_sin, batch, pool, 0, HEADS)])
    moved = 2 * qkv.nbytes + cos_sin.nbytes
    yield Speed("rotary", "16384 tokens, heads 32/8 of 128", time, moved / time / ceilings.copy, COPY, 0.80)


def _few_rows(config: CudaConfig, ceilings: Ceilings) -> Iterator[Speed]:
    """The layers of Llama 3 8B for one token: a read of the weights."""
    for columns, width in ((6144, 4096), (4096, 4096), (4096, 14_336), (28_672, 4096)):
        for form in ("dense", "int4", "fp8"):
            packed = [pack(weight_of(form, columns, width), device="cuda") for _ in range(4)]
            x = normal(1, width)
            tile = linear_kernels.skinny_tile(packed[0], config)
            work = [functools.partial(linear_kernels.run_linear, x, p, None, None, x.dtype, tile) for p in packed]
            time = graph_seconds(list(work))
            share = packed[0].num_bytes / time / ceilings.copy
            yield Speed("linear", f"{form} {columns} x {width}, 1 row", time, share, COPY, None)
        weights = [(normal(columns, width, dtype=torch.float32) * width**-0.5).bfloat16() for _ in range(4)]
        time = graph_seconds([functools.partial(torch.nn.functional.linear, x, w) for w in weights])
        share = weights[0].nbytes / time / ceilings.copy
        yield Speed("linear", f"cuBLAS {columns} x {width}, 1 row", time, share, COPY, None)


def _sampling() -> Iterator[Speed]:
    logits = torch.randn(64, 128_256, device="cuda") * 3
    time = graph_seconds([lambda: argmax(logits)])
    yield Speed("sampling", "argmax of 64 x 128256", time, None, "", None)
    ones = torch.ones(64, device="cuda")
    rows = RowSampling(ones * 0.7, (ones * 20).int(), ones * 0.95, ones * 0, torch.rand(64, device="cuda"))
    time = graph_seconds([lambda: sample(logits, rows)])
    yield Speed("sampling", "top-k 20, top-p 0.95 of 64 x 128256", time, None, "", None)


def dense(columns: int, width: int) -> DenseWeight:
    """A random bfloat16 weight."""
    return DenseWeight((normal(columns, width, dtype=torch.float32) * width**-0.5).bfloat16())
