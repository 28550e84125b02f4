"""The calibration that outlives an engine: kept, checked, and not believed where the machine shows something else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from checksum_model import ChecksumModel

from sessile.server.engine import kept_calibration
from sessile.server.engine.calibration import load_samples
from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.kept_calibration import KeptCalibration, newest
from sessile.server.engine.kv_cache import KVCache
from sessile.server.engine.lower_tiers import TierSetup, open_lower_tiers
from sessile.server.model.causal_lm import CausalLM
from sessile.sessions.cache.cost_model import Calibration, LoadSample, PrefillSample
from sessile.sessions.cache.lower_tiers import LowerTiers

KEPT = Calibration(prefill=(0.001, 0.001, 0.0), loads={"host": (1e-4, 1e-9)})


class Machine:
    """What measurements would show, ``factor`` times as slow as ``KEPT`` says; and how many were made in full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.factor = 1.0
        self.measured = 0
        monkeypatch.setattr(kept_calibration, "measure", self.measure)
        monkeypatch.setattr(kept_calibration, "prefill_samples", self.prefills)
        monkeypatch.setattr(kept_calibration, "load_samples", self.loads)

    def measure(self, model, kv_cache, tiers) -> Calibration:
        self.measured += 1
        return KEPT

    def prefills(self, model, kv_cache, shapes) -> list[PrefillSample]:
        return [PrefillSample(128, 0, self.factor * (0.001 + 0.128))]

    def loads(self, tier, block_bytes, counts) -> list[LoadSample]:
        return [LoadSample(block_bytes, self.factor * (1e-4 + 1e-9 * block_bytes))]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def start(folder: Path, weights: str = "w", **config: object) -> EngineCore:
    settings = EngineConfig(kv_memory_bytes=2**16, host_memory_bytes=2**16, **config)  # type: ignore[arg-type]
    kept = KeptCalibration(folder, "checksums", (weights,))
    tiers = TierSetup(partial(open_lower_tiers, settings), kept.calibrate, kept.keep)
    return EngineCore(settings, ChecksumModel(), torch.device("cpu"), lambda: 0.0, weights, tiers)


def test_the_second_start_only_checks(machine: Machine, tmp_path: Path) -> None:
    for _ in range(3):
        start(tmp_path / "calibration").close()
    assert machine.measured == 1
    assert len(list((tmp_path / "calibration").iterdir())) == 1


def test_what_an_engine_learnt_is_what_the_next_starts_from(machine: Machine, tmp_path: Path) -> None:
    core = start(tmp_path)
    for _ in range(100):
        core._cache.transfer.cost.observe_prefill(64, 0, 0.08)
    learnt = core._cache.transfer.cost.prefill_s(64, 0)
    core.close()
    again = start(tmp_path)
    assert again._cache.transfer.cost.prefill_s(64, 0) == pytest.approx(learnt)
    assert learnt > 0.066
    again.close()


@pytest.mark.parametrize("factor", [0.2, 10.0])
def test_a_machine_that_has_changed_is_measured_again(machine: Machine, tmp_path: Path, factor: float) -> None:
    start(tmp_path).close()
    machine.factor = factor
    start(tmp_path).close()
    assert machine.measured == 2


def test_another_model_another_file(machine: Machine, tmp_path: Path) -> None:
    start(tmp_path).close()
    start(tmp_path, weights="others").close()
    assert machine.measured == 2


@pytest.mark.parametrize("content", [b"", b"{", b'{"prefill": 3}', b"\xff\x00"])
def test_a_damaged_file_is_as_good_as_none(machine: Machine, tmp_path: Path, content: bytes) -> None:
    start(tmp_path).close()
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    start(tmp_path).close()
    assert machine.measured == 2


def test_a_folder_that_cannot_be_made_is_no_error(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    start(tmp_path / "file" / "calibration").close()
    assert machine.measured == 1


def test_what_was_kept_last_says_from_where_on_a_load_pays(machine: Machine, tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "missing") is None
    start(tmp_path).close()
    (tmp_path / "damaged.json").write_text("{")
    kept = newest(tmp_path)
    assert kept is not None
    assert kept.model == "checksums"
    assert kept.break_even_tokens() == {"host": 16}


def test_the_blocks_of_the_measurement_are_no_use_of_the_tiers(tmp_path: Path) -> None:
    def measure(model: CausalLM, kv_cache: KVCache, lower: LowerTiers) -> Calibration:
        assert all(load_samples(lower[tier], kv_cache.layout.block_bytes, [1, 8]) for tier in lower.local)
        assert all(lower[tier].stats().hits == 9 for tier in lower.local)
        return KEPT

    disk = str(tmp_path / "kv")
    settings = EngineConfig(kv_memory_bytes=2**18, host_memory_bytes=2**22, disk_quota_bytes=2**24, disk_path=disk)
    tiers = TierSetup(partial(open_lower_tiers, settings), measure)
    core = EngineCore(settings, ChecksumModel(), torch.device("cpu"), lambda: 0.0, "w", tiers)
    lower = core._cache.transfer.tiers
    assert len(lower.local) == 2
    for tier in lower.local:
        stats = lower[tier].stats()
        assert (stats.hits, stats.stored, stats.read_bytes, stats.written_bytes) == (0, 0, 0, 0), tier
    core.close()
