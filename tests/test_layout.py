"""The house keeps its shape: layers import downward, only ``sessile`` is importable, and the core needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("server", "sessions", "kernels", "prompt_lint", "bench_agent")

# The first entry that a module's path starts with is its layer; a module imports its own layer and lower ones.
# (DESIGN: 1 is the top. Two parts of one layer that must not know each other are listed in STRANGERS.)
LAYERS: tuple[tuple[str, int], ...] = (
    ("bench_agent", 1),
    ("server.app", 2),
    *((f"server.{name}", 2) for name in ("composition", "front", "lifecycle", "places", "progress", "doctor")),
    *((f"server.{name}", 2) for name in ("command_line", "config", "model_list")),
    ("server.keys_command", 2),
    ("server.sessions_command", 2),
    ("server.store_command", 2),
    ("server.folder_command", 2),
    ("server.terminal", 2),
    ("server.rpc", 3),
    ("server.web", 3),
    ("server.client", 3),
    ("server.error_status", 3),
    ("server.readiness", 3),
    ("server.settings", 3),
    ("server.proto", 3),
    ("server.engine.client", 4),
    ("sessions.manager", 4),
    ("server.observe", 4),
    ("server.engine", 5),
    ("server.text", 5),
    ("server.model", 5),
    ("server", 5),
    ("sessions", 6),
    ("kernels", 6),
    ("prompt_lint", 6),
    ("", 6),
)
STRANGERS = (
    ("sessions", "kernels"),
    ("kernels", "sessions"),
    ("kernels", "server"),
    ("prompt_lint", "sessions"),
    ("prompt_lint", "kernels"),
    ("prompt_lint", "server"),
    ("bench_agent", "server.engine"),
    ("bench_agent", "sessions.cache"),
    ("bench_agent", "sessions.store"),
    ("bench_agent", "sessions.manager"),
    ("bench_agent", "kernels"),
)


def modules() -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(module: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name (without ``sessile.``) of each import of ours."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = [*base, *(node.module.split(".") if node.module else [])]
            if node.level == 0:
                if name[:1] != ["sessile"]:
                    continue
                name = name[1:]
            for alias in node.names:
                yield node.lineno, ".".join([*name, alias.name])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "sessile":
                    yield node.lineno, alias.name.removeprefix("sessile.")


def layer(module: str) -> int:
    return next(number for prefix, number in LAYERS if not prefix or f"{module}.".startswith(f"{prefix}."))


def test_imports_go_downward() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module} (layer {layer(module)}) imports {name} (layer {layer(name)})"
        for module, path in modules()
        for line, name in imports_of(module, path)
        if layer(name) < layer(module) and not module.startswith(f"{name}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_strangers_do_not_know_each_other() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module} imports {name}"
        for module, path in modules()
        for line, name in imports_of(module, path)
        for mine, theirs in STRANGERS
        if f"{module}.".startswith(f"{mine}.") and f"{name}.".startswith(f"{theirs}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_sessions_has_no_torch() -> None:
    lazy = {"sessions/cache/lmcache_tier.py"}
    for module, path in modules():
        if module.startswith("sessions") and str(path.relative_to(ROOT)) not in lazy:
            assert "import torch" not in path.read_text(), path


def test_top_level_names_are_those_of_the_design() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    folders = {name.split("/")[0] for name in tracked.stdout.split("\n") if "/" in name}
    assert folders <= {*FOLDERS, "tests", "docs", "examples", ".ci", ".import-root", ".github"}
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_bare_top_level_name_imports() -> None:
    script = (
        "import importlib.util as u, sys; "
        f"sys.exit([n for n in {FOLDERS!r} if (s := u.find_spec(n)) and s.origin and 'sessile' in s.origin] or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["sessile.prompt_lint", "sessile.prompt_lint.cli", "sessile.client"])
def test_the_core_needs_no_torch(module: str) -> None:
    script = f"import sys; sys.modules['torch'] = None; import {module}"
    environment = {"PYTHONPATH": str(ROOT / ".import-root")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
