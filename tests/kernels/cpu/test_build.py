"""Building: once for each level and source, safe among processes, and a warning where there is no compiler."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sessile.kernels import backend
from sessile.kernels.cpu import build, features
from sessile.kernels.cpu.features import Level, chosen_level
from sessile.kernels.linear import DenseWeight, linear, pack

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _fresh_selection() -> Iterator[None]:
    backend.select.cache_clear()
    yield
    backend.select.cache_clear()


def test_processes_that_start_at_once_build_once(tmp_path: Path) -> None:
    code = "from sessile.kernels.backend import prepare; print(prepare('cpu', lambda s, f: print('BUILD', f)).reason)"
    environment = {
        **os.environ,
        "SESSILE_CACHE_DIR": str(tmp_path),
        "SESSILE_CPU_FEATURES": "plain",
        "PYTHONPATH": str(ROOT / ".import-root"),
    }
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=200)[0] for process in both]
    assert all("C++ kernels for plain" in output for output in outputs)
    assert "".join(outputs).count("BUILD 1.0") == 1
    assert len(list((tmp_path / "kernels").glob("*.so"))) == 1
    assert not list((tmp_path / "kernels").glob("build-*"))


def test_another_source_compiler_or_flag_is_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build._fingerprint(["-O3"])
    assert build._fingerprint(["-O3"]) == before
    assert build._fingerprint(["-O2"]) != before
    monkeypatch.setattr(build, "_compiler_version", lambda: "another")
    assert build._fingerprint(["-O3"]) != before


def test_without_a_compiler_torch_serves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SESSILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with caplog.at_level(logging.WARNING):
        selection = backend.select("cpu")
    assert selection.library is None
    assert "no C++ kernels" in selection.reason
    assert "Install a C++ compiler" in caplog.text
    assert set(selection.describe().values()) == {"torch"}
    weight = DenseWeight(torch.randn(4, 32))
    torch.testing.assert_close(linear(torch.ones(1, 32), pack(weight))[0], weight.tensor.sum(1))


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SESSILE_CACHE_DIR", str(tmp_path / "file"))
    assert "cannot write" in backend.select("cpu").reason


def test_features_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(features.VARIABLE, raising=False)
    assert chosen_level() == features.machine_level()
    monkeypatch.setenv(features.VARIABLE, "plain")
    assert chosen_level() is Level.PLAIN
    monkeypatch.setenv(features.VARIABLE, "torch")
    assert chosen_level() is None
    monkeypatch.setenv(features.VARIABLE, "avx9")
    with pytest.raises(ValueError, match="avx9 is not one of plain, avx2"):
        chosen_level()
    monkeypatch.setattr(features, "machine_level", lambda: Level.AVX2)
    monkeypatch.setenv(features.VARIABLE, "avx512")
    with pytest.raises(ValueError, match="has avx2 at most"):
        chosen_level()
