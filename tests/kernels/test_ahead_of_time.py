"""Every kernel and configuration compiles for GPUs that are not here, without spills and within shared memory."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not compiled")

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = (80, 90, 100)


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, tuple[subprocess.Popen[str], Path]]]:
    """One process an architecture, all started at once: each would use one core alone. Triton keeps its results."""
    folder = tmp_path_factory.mktemp("resources")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root"), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    started = {}
    for architecture in ARCHITECTURES:
        report = folder / f"{architecture}.json"
        command = [sys.executable, "-m", "sessile.kernels.ahead_of_time", str(architecture), "--json", str(report)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        started[architecture] = (process, report)
    yield started
    for process, _ in started.values():
        with process:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile(compilers: dict[int, tuple[subprocess.Popen[str], Path]], architecture: int) -> None:
    process, report = compilers[architecture]
    output, _ = process.communicate(timeout=880)
    assert process.returncode == 0, "\n".join(line for line in output.splitlines() if "FAILS" in line) or output
    found = {entry["kernel"] for entry in json.loads(report.read_text())}
    assert found == KERNELS, "the catalogue does not launch every kernel"


KERNELS = {
    "add_rms_norm",
    "argmax",
    "copy_prefix",
    "copy_runs",
    "decode",
    "dequantise",
    "down",
    "extend",
    "gate_up",
    "gated_linear",
    "linear",
    "merge_splits",
    "rms_norm",
    "rotary_kv_write",
    "sample",
    "silu_mul",
    "sum_choices",
    "verify_drafts",
}


def test_the_list_of_kernels_is_complete() -> None:
    """Every kernel that is launched (its name starts with one underscore) is in the list."""
    launched = set()
    for file in sorted((ROOT / "kernels").glob("*/*.py")):
        text = file.read_text()
        launched |= {name for name in _kernels(text) if f"{name}[" in text}
    assert {name.lstrip("_") for name in launched} == KERNELS


def _kernels(text: str) -> list[str]:
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if any("triton.jit" in ast.unparse(decorator) for decorator in f.decorator_list)]
