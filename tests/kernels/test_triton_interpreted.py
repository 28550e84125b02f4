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
@pytest.mark.timeout(900)  # a busy machine
def test_kernels_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "SESSILE_CPU_FEATURES": "torch"}
    # Triton 3.6's interpreter makes scalars of arrays of one element, of which numpy warns.
    warning = "ignore:Conversion of an array:DeprecationWarning"
    options = ["-q", "-p", "no:cacheprovider", "--durations=5", "-W", warning]
    command = [sys.executable, "-m", "pytest", *options, str(FOLDER)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
