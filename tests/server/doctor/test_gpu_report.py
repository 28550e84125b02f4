"""The GPU self-test's report, without a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from sessile.server.doctor.cuda.report import main
from sessile.server.doctor.cuda.results import Correctness, Speed, going_on, print_results


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
