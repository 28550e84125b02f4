"""The GPU self-test's report, without a GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from fake_device import FakeDevice, FakeEvent
from summing_model import SummingModel

from sessile.server.doctor.cuda.engine_speed import seconds_a_step
from sessile.server.doctor.cuda.report import main
from sessile.server.doctor.cuda.results import Correctness, Speed, going_on, print_results
from sessile.server.doctor.cuda.transfers import check_transfers
from sessile.server.engine import core as core_module
from sessile.server.engine.core import EngineCore
from sessile.server.engine.device.parts import gpu_parts
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.kv_cache import KVCache


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert main() == 1
    assert "no CUDA device" in capsys.readouterr().err


def test_a_nan_is_never_right() -> None:
    assert Correctness("op", "case", 0.0, 0.0).is_right
    assert not Correctness("op", "case", 1.1e-2, 1e-2).is_right
    assert not Correctness("op", "case", math.nan, 1e-2).is_right


def test_a_part_that_fails_is_a_line_and_the_rest_goes_on() -> None:
    def lines() -> Iterator[Correctness]:
        yield Correctness("a", "first", 0.0, 0.0)
        raise RuntimeError("misaligned address\nand more")

    found = list(going_on(lines(), lambda error: Correctness("a", error, math.nan, 0.0)))
    assert [line.is_right for line in found] == [True, False]
    assert found[1].case == "RuntimeError: misaligned address"


def test_transfers_are_compared_to_the_bit() -> None:
    layout, device = SummingModel().kv_layout(16), FakeDevice()
    kv_cache = KVCache(layout, 64, device.torch_device)
    kv_cache.pool.copy_(torch.randn(kv_cache.pool.shape))
    lines = list(check_transfers(device, kv_cache))
    assert len(lines) == 2
    assert all(line.is_right for line in lines)


class _Passed(FakeEvent):
    """Lets everybody through at once."""

    def wait(self) -> None: ...


class EarlyDevice(FakeDevice):
    """One whose events have passed before the work in front of them is done."""

    def record(self) -> FakeEvent:
        event = super().record()
        return _Passed(event.device, event.stream, event.number)


def test_a_transfer_that_comes_too_early_is_found() -> None:
    device = EarlyDevice()
    kv_cache = KVCache(SummingModel().kv_layout(16), 64, device.torch_device)
    kv_cache.pool.copy_(torch.randn(kv_cache.pool.shape))
    found = {line.case: line.is_right for line in check_transfers(device, kv_cache)}
    assert found == {"out, overwritten at once": False, "in, behind a step, and read": False}


@pytest.mark.parametrize("turns", [1, 3])
def test_a_step_of_the_engine_is_timed_where_all_decode(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    device, model = FakeDevice(), SummingModel()
    model.max_position = 4096
    config = EngineConfig(kv_memory_bytes=80 * 16 * model.kv_layout(16).block_bytes, max_sequences=4, max_context=2000)
    parts = gpu_parts(config, model, device, lambda stage, fraction: None)
    monkeypatch.setattr(core_module, "device_parts", lambda *arguments: parts)
    core = EngineCore(config, model, torch.device("cpu"), itertools.count().__next__)
    clock = (0.25 * tick for tick in itertools.count())
    assert seconds_a_step(core, turns, clock.__next__) == 0.25
    assert core.stats().running == 0
    core.close()


def test_the_table_says_what_is_wrong_and_what_is_slow(capsys: pytest.CaptureFixture[str]) -> None:
    correctness = [Correctness("linear", "int4", 2e-3, 1e-2), Correctness("moe", "dense", math.nan, 2e-2)]
    speeds = [
        Speed("attention", "decode", 2.5e-4, 0.7, "copy bandwidth", 0.75),
        Speed("sampling", "argmax", 2e-3, None, "", None),
    ]
    print_results("a GPU", correctness, speeds)
    lines = capsys.readouterr().out.splitlines()
    assert any("linear" in line and "right" in line for line in lines)
    assert any("moe" in line and "WRONG" in line for line in lines)
    assert any("250.0 µs" in line and "70%" in line and "below" in line for line in lines)
    assert any("2.000 ms" in line and "below" not in line for line in lines)
    assert lines[-1] == "2 checks, 1 wrong; 2 speeds, 1 below their goal"
