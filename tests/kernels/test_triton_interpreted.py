"""Runs the tests in ``interpreted`` with Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

FOLDER = Path(__file__).parent / "interpreted"


@pytest.mark.slow
def test_kernels_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "SESSILE_CPU_FEATURES": "torch"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", str(FOLDER)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
