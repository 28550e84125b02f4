"""A pool on a GPU that is not there, under an engine whose model runs on the CPU: blocks go to and from the tiers
through staging buffers, in pieces of a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_device import FakeDevice

from sessile.server.engine import core as core_module
from sessile.server.engine.device.parts import DeviceParts
from sessile.server.engine.device.staged_blocks import StagedBlocks
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.kv_cache import KVCache, blocks_in
from sessile.server.engine.model_runner import ModelRunner
from sessile.server.engine.sampler import sample
from sessile.server.engine.steps import HostSteps
from sessile.server.model.causal_lm import CausalLM
from sessile.sessions.cache.prefix_cache import BlockCopy

AT_ONCE = 5  # no whole number of the shared tier's entries


class StreamedCache(KVCache):
    """The copies on write come after what is in the stream of steps."""

    device: FakeDevice

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        self.device.finish_steps()
        super().copy(copies)


class StreamedRunner(ModelRunner):
    """So does the model."""

    device: FakeDevice

    def run(self, arrays: Any) -> torch.Tensor:
        self.device.finish_steps()
        return super().run(arrays)


class SettledBlocks(StagedBlocks):
    """What leaves the pool is in the tiers before the next step is planned, as it is without a GPU."""

    def copy_out(self, blocks: Any, use: Callable[..., None]) -> None:
        super().copy_out(blocks, use)
        self.settle()


@contextmanager
def staged_pools(blocks: type[StagedBlocks] = SettledBlocks) -> Iterator[None]:
    """Engines that are made meanwhile have such a pool."""

    def parts(config: EngineConfig, model: CausalLM, device: torch.device, progress: object) -> DeviceParts:
        layout, fake = model.kv_layout(config.block_size), FakeDevice()
        kv_cache = StreamedCache(layout, blocks_in(config.kv_memory_bytes, layout), device)
        runner = StreamedRunner(model, kv_cache, device)
        kv_cache.device = runner.device = fake
        staged = blocks(kv_cache, fake, AT_ONCE * layout.block_bytes)
        return DeviceParts(kv_cache, runner, HostSteps(runner, sample), staged)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "device_parts", parts)
        yield
