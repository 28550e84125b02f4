"""The parts of an engine that differ by device: the KV pool, the runner and the sampler."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from ....kernels.attention_batch import AttentionBatch
from ....kernels.sampling import RowSampling
from ....kernels.sampling import sample as sample_rows
from ...model.causal_lm import CausalLM
from ..engine_config import EngineConfig
from ..kv_cache import KVCache, blocks_in
from ..model_runner import ModelRunner, Runner
from ..pool_blocks import HostBlocks, PoolBlocks
from ..sampler import sample
from ..steps import HostSteps, Steps
from .buckets import ROWS_OF_A_DRAFT
from .graph_runner import GraphRunner, Progress
from .graph_steps import GraphSteps
from .interface import DeviceInterface
from .memory_plan import num_blocks, out_of_memory, plan_memory
from .staged_blocks import ALL_STAGING_BYTES, StagedBlocks
from .step_buffers import Sizes

_WARM_UP_TOKENS = (2, 24, 160)
_GRAPH_BYTES = 512 * 2**20  # what graphs and their common pool took at most


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What the engine's step works with."""

    kv_cache: KVCache
    runner: Runner
    steps: Steps
    blocks: PoolBlocks


def device_parts(config: EngineConfig, model: CausalLM, device: torch.device, progress: Progress) -> DeviceParts:
    """The parts for ``device``.

    Raises:
        ConfigError: memory does not suffice, with the numbers and what can be done.
    """
    if device.type == "cuda":
        from .cuda_device import CudaDevice

        return gpu_parts(config, model, CudaDevice(device), progress)
    layout = model.kv_layout(config.block_size)
    kv_cache = KVCache(layout, blocks_in(config.kv_memory_bytes, layout), device)
    runner = ModelRunner(model, kv_cache, device)
    return DeviceParts(kv_cache, runner, HostSteps(runner, sample), HostBlocks(kv_cache.rows()))


def gpu_parts(config: EngineConfig, model: CausalLM, device: DeviceInterface, progress: Progress) -> DeviceParts:
    """The parts for a GPU: the pool is as large as the memory that the largest step leaves, or as was asked for."""
    layout = model.kv_layout(config.block_size)
    progress("profile run", 0.0)
    plan = plan_memory(
        device, lambda: _run_prompt(config, model, device, config.max_batch_tokens), _GRAPH_BYTES, ALL_STAGING_BYTES
    )
    blocks = num_blocks(plan, layout, config.kv_memory_bytes)
    try:
        kv_cache = KVCache(layout, blocks, device.torch_device)
        staged = StagedBlocks(kv_cache, device)
        context = min(config.max_context or model.max_position, model.max_position, blocks * config.block_size)
        sizes = Sizes(_most_logits(config), config.max_sequences, -(-context // config.block_size) + 1)
        runner = GraphRunner(model, kv_cache, device, sizes)
        _warm_up(config, model, device, progress)
        runner.capture(progress)
    except torch.OutOfMemoryError as error:
        raise out_of_memory(device, f"a KV pool of {blocks} blocks with its graphs") from error
    return DeviceParts(kv_cache, runner, GraphSteps(runner, device, sizes.rows), staged)


def _warm_up(config: EngineConfig, model: CausalLM, device: DeviceInterface, progress: Progress) -> None:
    """Steps of the sizes that take other kernels than the largest, so that none is compiled while serving."""
    for number, tokens in enumerate(_WARM_UP_TOKENS):
        progress("compile kernels", number / len(_WARM_UP_TOKENS))
        _run_prompt(config, model, device, min(tokens, config.max_batch_tokens))
    rows = RowSampling(*(torch.full((2,), 0.5, device=device.torch_device) for _ in range(5)))
    rows = dataclasses.replace(rows, top_k=torch.ones(2, dtype=torch.int32, device=device.torch_device))
    sample_rows(torch.zeros(2, model.vocab_size, device=device.torch_device), rows)


def _run_prompt(config: EngineConfig, model: CausalLM, device: DeviceInterface, tokens: int) -> None:
    """A step of one prompt of ``tokens``, over a pool of one block that nothing is written to."""
    target = device.torch_device
    width = -(-tokens // config.block_size)
    positions = torch.arange(tokens, dtype=torch.int32) % model.max_position
    batch = AttentionBatch(
        positions=positions.to(target),
        slot_mapping=torch.full((tokens,), -1, dtype=torch.int64, device=target),
        block_tables=torch.zeros(1, width, dtype=torch.int32, device=target),
        query_start=torch.tensor([0, tokens], dtype=torch.int32, device=target),
        context_lens=torch.tensor([tokens], dtype=torch.int32, device=target),
    )
    kv_pool = model.kv_layout(config.block_size).allocate(1, target)
    with torch.inference_mode():
        hidden = model.forward(torch.zeros(tokens, dtype=torch.int64, device=target), batch, kv_pool)
        model.logits(hidden[: _most_logits(config)])


def _most_logits(config: EngineConfig) -> int:
    """Rows of logits of the largest step: each sequence verifies as many drafts as there is a graph for."""
    return min(config.max_batch_tokens, config.max_sequences * ROWS_OF_A_DRAFT[-1])
