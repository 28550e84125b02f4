"""The built wheel in a fresh environment: adds ``sessile/`` alone, and its core needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, **kwargs) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, cwd="/", **kwargs
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its core dependencies."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
    return python


def test_it_holds_sessile_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"sessile", f"{wheel.name.rsplit('-', 3)[0]}.dist-info"}
    assert not [name for name in names if "/tests/" in name or name.endswith((".pyc", ".so"))]
    for needed in ("sessile/py.typed", "sessile/server/proto/session.proto", "sessile/kernels/backend.py"):
        assert needed in names


def test_the_core_installs_without_torch(python: Path) -> None:
    packages = run(python, "-m", "pip", "list", "--format=freeze").lower()
    assert "sessile==" in packages
    assert "torch" not in packages
    run(python, "-W", "error", "-c", "import sessile.prompt_lint, sessile.client")


def test_its_commands_start(python: Path) -> None:
    assert "prompt-lint" in run(python.parent / "prompt-lint", "--help")
    assert "serve" in run(python.parent / "sessile", "--help")


def test_the_server_without_its_extra_says_what_to_install(python: Path) -> None:
    done = subprocess.run([python.parent / "sessile", "serve"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "sessile[server]" in done.stderr
    assert "Traceback" not in done.stderr


def test_transformers_still_imports_beside_it(wheel: Path, tmp_path: Path) -> None:
    """A top-level package called ``kernels`` would be taken for Hugging Face's by transformers."""
    pytest.importorskip("transformers")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, wheel)
    script = "import sessile, transformers; print(sessile.__file__); from transformers import LlamaForCausalLM"
    out = run(sys.executable, "-c", script, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert str(tmp_path) in out
