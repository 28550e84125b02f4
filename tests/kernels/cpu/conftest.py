"""Runs the C++ kernels at each level that this machine's CPU has, and the BF16 level with its instruction emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from sessile.kernels import backend
from sessile.kernels.cpu import features
from sessile.kernels.cpu.features import Level, machine_level
from sessile.kernels.cpu.library import CpuLibrary

EMULATED = "avx512_bf16_emulated"


@pytest.fixture(params=["plain", "avx2", "avx512", "avx512_bf16", EMULATED])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Forces a level; its library is built at the first use and then comes from the cache."""
    name: str = request.param
    wanted = Level.AVX512 if name == EMULATED else Level[name.upper()]
    if wanted > machine_level():
        pytest.skip(f"this CPU has no {wanted.label}")
    if name == EMULATED:
        flags = [*Level.AVX512.compiler_flags, "-DSESSILE_EMULATE_DPBF16"]
        monkeypatch.setattr(features, "machine_level", lambda: Level.AVX512_BF16)
        monkeypatch.setattr(Level, "compiler_flags", property(lambda _: flags))
    monkeypatch.setenv(features.VARIABLE, "avx512_bf16" if name == EMULATED else name)
    backend.select.cache_clear()
    library = backend.select("cpu").library
    assert library is not None, backend.select("cpu").reason
    yield name
    backend.select.cache_clear()


@pytest.fixture
def with_threads(level: str) -> Iterator[Callable[[int], CpuLibrary]]:
    """Selects the same level with another number of threads."""
    before = torch.get_num_threads()

    def select(threads: int) -> CpuLibrary:
        torch.set_num_threads(threads)
        backend.select.cache_clear()
        library = backend.select("cpu").library
        assert library is not None
        assert library.threads == threads
        return library

    yield select
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
