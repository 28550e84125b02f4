"""Memory of a GPU, and the parts of an engine on one that is not there."""

from __future__ import annotations

import pytest
import torch
from fake_device import GIB, FakeDevice
from summing_model import SummingModel

from sessile.server.engine.device.memory_plan import MemoryPlan, num_blocks, plan_memory, weights_fit
from sessile.server.engine.device.parts import gpu_parts
from sessile.server.engine.engine_config import EngineConfig
from sessile.sessions.errors import ConfigError

LAYOUT = SummingModel().kv_layout(16)


def test_the_pool_takes_what_the_largest_step_leaves() -> None:
    plan = plan_memory(FakeDevice(free=8 * GIB, step_bytes=2 * GIB), lambda: None, GIB)
    assert plan == MemoryPlan(total=16 * GIB, free=8 * GIB, step=2 * GIB, graphs=GIB)
    assert 0.9 * 5 * GIB < num_blocks(plan, LAYOUT, 0) * LAYOUT.block_bytes <= 5 * GIB
    assert num_blocks(plan, LAYOUT, GIB) == GIB // LAYOUT.block_bytes


def test_too_much_asked_for_is_an_error_with_the_numbers() -> None:
    plan = MemoryPlan(total=16 * GIB, free=8 * GIB, step=2 * GIB, graphs=GIB)
    with pytest.raises(ConfigError, match=r"asks for 7\.00 GiB.*8\.00 GiB free.*step takes 2\.00 GiB") as error:
        num_blocks(plan, LAYOUT, 7 * GIB)
    assert error.value.field == "engine.kv_memory_bytes"
    assert "ask for at most" in str(error.value.remedy)


def test_too_little_free_is_an_error_with_a_remedy() -> None:
    plan = MemoryPlan(total=16 * GIB, free=GIB, step=2 * GIB, graphs=GIB)
    with pytest.raises(ConfigError, match="room for 0 blocks") as error:
        num_blocks(plan, LAYOUT, 0)
    assert "end other programs" in str(error.value.remedy)


def test_a_step_that_does_not_fit_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"largest step does not fit; 0\.50 GiB of 16\.00 GiB are free"):
        plan_memory(FakeDevice(free=GIB // 2, fails=True), lambda: None, 0)


def test_weights_that_do_not_fit_are_an_error_with_the_numbers_and_a_remedy() -> None:
    device = FakeDevice(free=3 * GIB)
    told = pytest.raises(ConfigError, match=r"3\.00 GiB that were free of the GPU's 16\.00 GiB")
    with told as error, weights_fit(device.memory(), "engine.model"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 15.00 GiB")
    assert error.value.field == "engine.model"
    assert "smaller or a quantised model" in str(error.value.remedy)


def test_other_failures_of_the_profile_run_stay_what_they_are() -> None:
    def broken() -> None:
        raise RuntimeError("misaligned address")

    with pytest.raises(RuntimeError, match="misaligned"):
        plan_memory(FakeDevice(), broken, 0)


def test_parts_of_a_gpu() -> None:
    config = EngineConfig(kv_memory_bytes=40 * LAYOUT.block_bytes * 2, max_batch_tokens=32, max_sequences=4)
    model, heard = SummingModel(), list[str]()
    parts = gpu_parts(config, model, FakeDevice(), lambda stage, fraction: heard.append(stage))
    assert parts.kv_cache.num_blocks == 80
    assert model.rows[0] == 32, "the profile run is the largest step"
    assert heard[0] == "profile run" and heard[-1] == "capture graphs"
