"""A random-weight decoder in the shape of Llama 3 8B, run by the engine's own GPU runner."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ....kernels.attention_batch import AttentionBatch
from ....kernels.decoder import DecoderLayer, DecoderWeights, decoder
from ....kernels.embedding import embedding
from ....kernels.kv_layout import KVLayout, KVOrder
from ....kernels.linear import PackedLinear, linear, pack
from ....kernels.rotary import cos_sin_table
from ...engine.batch import StepArrays
from ...engine.core import EngineCore
from ...engine.device.cuda_device import CudaDevice
from ...engine.device.graph_runner import GraphRunner
from ...engine.device.step_buffers import Sizes
from ...engine.engine_config import EngineConfig, Speculation
from ...engine.kv_cache import KVCache
from .engine_speed import PROMPT_TOKENS, seconds_a_step
from .inputs import unequal
from .results import Correctness, Speed
from .speed import COPY, HEADS, MATMUL, dense, extend_flops, kv_bytes
from .timing import Ceilings, seconds

LAYERS, HIDDEN, INNER, VOCABULARY, BLOCK = 32, 4096, 14_336, 128_256, 16
CONTEXT, SEQUENCES, PROMPT = 4096, 64, 8192
_STEPS = 30
_ENGINE_KV_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class RandomLlama:
    """A CausalLM with random weights. ``embedding`` is the output layer too, so that it takes 15 GB."""

    embedding: PackedLinear
    weights: DecoderWeights
    max_position: int = PROMPT + 64
    vocab_size: int = VOCABULARY

    @classmethod
    def make(cls, layers: int = LAYERS) -> RandomLlama:
        norm = torch.ones(HIDDEN, device="cuda")
        made = [
            DecoderLayer(
                input_norm=norm,
                qkv=pack(dense(HEADS.row_width, HIDDEN), device="cuda"),
                o=pack(dense(HIDDEN, HEADS.num_heads * HEADS.head_dim), device="cuda"),
                post_norm=norm,
                gate_up=pack(dense(2 * INNER, HIDDEN), device="cuda"),
                down=pack(dense(HIDDEN, INNER), device="cuda"),
            )
            for _ in range(layers)
        ]
        angles = 5e5 ** -(torch.arange(0, HEADS.head_dim, 2) / HEADS.head_dim)
        cos_sin = cos_sin_table(angles, PROMPT + 64).cuda()
        weights = DecoderWeights(made, norm, cos_sin, HEADS, HEADS.head_dim**-0.5, 1e-5)
        return cls(pack(dense(VOCABULARY, HIDDEN), device="cuda"), weights)

    @property
    def layer_bytes(self) -> int:
        """Bytes of the weights that one step reads."""
        parts = [part for w in self.weights.layers for part in (w.qkv, w.o, w.gate_up, w.down)]
        return sum(part.num_bytes for part in parts) + self.embedding.num_bytes

    def kv_layout(self, block_size: int) -> KVLayout:
        layers = len(self.weights.layers)
        return KVLayout(layers, HEADS.num_kv_heads, HEADS.head_dim, block_size, torch.bfloat16, KVOrder.PLAIN)

    def forward(self, token_ids: Tensor, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
        return decoder(embedding(token_ids, self.embedding), self.weights, batch, kv_pool)

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.embedding, out_dtype=torch.float32)


def step(contexts: list[int], query_len: int, rng: np.random.Generator) -> StepArrays:
    """The last ``query_len`` tokens of sequences of these lengths, random; sequence i has the blocks from the sum of
    those before it on."""
    widths = [-(-context // BLOCK) for context in contexts]
    first = np.concatenate([[0], np.cumsum(widths)[:-1]])
    tables = np.zeros((len(contexts), max(widths)), dtype=np.int32)
    for row, width in enumerate(widths):
        tables[row, :width] = first[row] + np.arange(width)
    lens = np.array(contexts, dtype=np.int32)
    positions = np.concatenate([np.arange(n - query_len, n) for n in contexts]).astype(np.int32)
    owner = np.repeat(np.arange(len(contexts)), query_len)
    ends = np.arange(1, len(contexts) + 1, dtype=np.int64) * query_len
    return StepArrays(
        token_ids=rng.integers(0, VOCABULARY, len(positions)),
        positions=positions,
        slot_mapping=tables[owner, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK,
        block_tables=tables,
        query_start=np.concatenate([[0], ends]).astype(np.int32),
        context_lens=lens,
        logits_rows=ends - 1,
        rows=[],
    )


class DecoderBench:
    """The model, its pool and the runner."""

    def __init__(self, layers: int = LAYERS) -> None:
        self.model = RandomLlama.make(layers)
        device = CudaDevice(torch.device("cuda"))
        blocks = SEQUENCES * (CONTEXT // BLOCK + 1)
        self.kv_cache = KVCache(self.model.kv_layout(BLOCK), blocks, device.torch_device)
        self.kv_cache.pool.normal_()
        sizes = Sizes(rows=SEQUENCES, sequences=SEQUENCES, blocks=PROMPT // BLOCK + 1)
        self.runner = GraphRunner(self.model, self.kv_cache, device, sizes)
        self.runner.capture(lambda stage, fraction: None)
        self.rng = np.random.default_rng(0)

    def check(self) -> Iterator[Correctness]:
        """Graphs against launches, and a chunked prompt against the whole."""
        arrays = step([100, 37, 250], 1, self.rng)
        replayed = self.runner.run(arrays).clone()
        eager = self.runner.launch_without_graph(arrays).logits
        yield Correctness("decoder", "a graph against launches", _error(replayed, eager), 2e-2)
        whole = step([300], 300, self.rng)
        wanted = self.runner.run(whole).clone()
        for first, last in ((0, 170), (170, 292), (292, 300)):
            logits = self.runner.run(_part(whole, first, last))
        yield Correctness("decoder", "a prompt in chunks against the whole", _error(logits, wanted), 5e-2)
        yield self._check_look_ahead()

    def _check_look_ahead(self) -> Correctness:
        """A step launched before the tokens of the one before it are read, against one that is given them."""
        contexts = [100, 37, 250]
        first, following = (step([context + more for context in contexts], 1, self.rng) for more in (0, 1))
        ticket = self.runner.launch(first)
        ahead = self.runner.launch(following, np.arange(len(contexts))).logits
        tokens = np.array(self.runner.collect(ticket))
        torch.cuda.synchronize()
        ahead = ahead.clone()
        told = self.runner.run(dataclasses.replace(following, token_ids=tokens))
        return Correctness("decoder", "a step ahead against one that knows its tokens", unequal(ahead, told), 0.0)

    def measure(self, ceilings: Ceilings) -> Iterator[Speed]:
        """Decode steps, a prefill, and the host's time between steps."""
        for sequences, context, allowed in ((1, 512, 1.2), (SEQUENCES, CONTEXT, 1.35)):
            arrays = step([context] * sequences, 1, self.rng)
            elapsed = seconds([functools.partial(self.runner.run, arrays)])
            moved = self.model.layer_bytes + len(self.model.weights.layers) * kv_bytes(sequences, context)
            share = moved / elapsed / ceilings.copy
            yield Speed("decoder", f"a step of {sequences} x {context} tokens", elapsed, share, COPY, 1 / allowed)
            yield self._gap(arrays, elapsed)
        whole = step([PROMPT], PROMPT, self.rng)
        elapsed = seconds([lambda: self.runner.run(whole)], repeat=5)
        products = 2.0 * PROMPT * (self.model.layer_bytes - self.model.embedding.num_bytes) / 2
        attention = len(self.model.weights.layers) * extend_flops(1, PROMPT)
        share = (products + attention) / elapsed / ceilings.matmul
        yield Speed("decoder", f"prefill of {PROMPT} tokens", elapsed, share, MATMUL, 0.55)

    def _gap(self, arrays: StepArrays, on_gpu: float) -> Speed:
        """Steps of which each takes its tokens from the one before, launched before that one's tokens are read."""
        previous = np.arange(arrays.num_sequences)
        ticket = self.runner.launch(arrays)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(_STEPS):
            following = self.runner.launch(arrays, previous)
            self.runner.collect(ticket)
            ticket = following
        self.runner.collect(ticket)
        gap = max((time.perf_counter() - started) / _STEPS - on_gpu, 1e-9)
        return _gap_line(f"runner's gap between steps of {arrays.num_sequences}", gap)

    def measure_engine(self) -> Iterator[Speed]:
        """The same of the whole engine, which plans, launches ahead, reads and reports."""
        config = EngineConfig(
            kv_memory_bytes=_ENGINE_KV_BYTES, max_sequences=SEQUENCES, host_memory_bytes=0, speculation=Speculation.OFF
        )
        core = EngineCore(config, self.model, torch.device("cuda"), time.monotonic)
        for turns in (1, SEQUENCES):
            arrays = step([PROMPT_TOKENS + 60] * turns, 1, self.rng)
            on_gpu = seconds([functools.partial(self.runner.run, arrays)])
            gap = max(seconds_a_step(core, turns, time.perf_counter) - on_gpu, 1e-9)
            yield _gap_line(f"engine's gap between steps of {turns}", gap)
        core.close()


def _gap_line(case: str, gap: float) -> Speed:
    return Speed("decoder", case, gap, min(3e-4 / gap, 9.99), "0.3 ms", 1.0)


def _part(whole: StepArrays, first: int, last: int) -> StepArrays:
    return StepArrays(
        token_ids=whole.token_ids[first:last],
        positions=whole.positions[first:last],
        slot_mapping=whole.slot_mapping[first:last],
        block_tables=whole.block_tables,
        query_start=np.array([0, last - first], dtype=np.int32),
        context_lens=np.array([last], dtype=np.int32),
        logits_rows=np.array([last - first - 1], dtype=np.int64),
        rows=[],
    )


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())
