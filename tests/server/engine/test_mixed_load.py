"""The benchmark of a long prompt beside streams runs and says what it measured; its figures are another matter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_llama import make_tiny_llama

from sessile.server.engine.mixed_load import main


@pytest.fixture
def threads_of_torch() -> Iterator[None]:
    """The benchmark sets them for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_of_torch")
def test_the_benchmark_runs(tmp_path: Path, capsys) -> None:
    make_tiny_llama(tmp_path / "model")
    arguments = [
        "--model",
        str(tmp_path / "model"),
        "--prompt-tokens",
        "300",
        "--streams",
        "2",
        "--stream-tokens",
        "20",
    ]
    assert main(arguments) == 0
    written = capsys.readouterr().out
    assert re.search(r"gap p50 \d+ ms, p99 \d+ ms, max \d+ ms, \d+ gaps", written)
    assert re.search(r"alone [\d.]+ and [\d.]+ s, beside the streams [\d.]+ s", written)
