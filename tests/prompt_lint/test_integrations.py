"""prompt-lint in other tools: the pre-commit hook, the GitHub Action, the pytest fixture."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sessile.prompt_lint.arguments import parser
from sessile.prompt_lint.code.analysis import language_of

ROOT = Path(__file__).parents[2]
pytest_plugins = ["pytester"]


def test_the_hook_runs_a_command_that_there_is() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *rest = shlex.split(hook["entry"])
    assert program == "prompt-lint"
    assert parser().parse_args([*rest, "a.py"]).paths == ["a.py"]
    suffixes = {
        "python": "py",
        "ts": "ts",
        "tsx": "tsx",
        "javascript": "js",
        "jsx": "jsx",
        "go": "go",
        "rust": "rs",
        "jinja": "j2",
    }
    assert set(hook["types_or"]) == set(suffixes)
    assert all(language_of(f"a.{suffixes[kind]}") for kind in hook["types_or"])


def test_each_step_of_the_action_is_a_command_that_there_is() -> None:
    action = yaml.safe_load((ROOT / ".github/actions/prompt-lint/action.yml").read_text())
    steps = [step["run"] for step in action["runs"]["steps"] if "prompt-lint check" in step.get("run", "")]
    assert len(steps) == 2
    for step in steps:
        words = shlex.split(re.sub(r"\$\w+", "x", step))
        assert parser().parse_args(words[1:]).command == "check"
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / ".github/actions/prompt-lint/action.yml").read_text()))
    assert used == set(action["inputs"])


def test_the_fixture_fails_a_test_that_breaks_the_cache(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["sessile.prompt_lint.pytest_plugin"]')
    pytester.makepyfile(
        """
        RULES = "Keep to every rule of the handbook. " * 200

        def ask(recorder, clock, turns):
            talk = [{"role": ("user", "assistant")[i % 2], "content": f"turn {i}"} for i in range(turns)]
            recorder.record({"model": "m", "messages": [{"role": "system", "content": clock + RULES}, *talk]})

        def test_good(prompt_lint):
            ask(prompt_lint, "", 1)
            ask(prompt_lint, "", 3)

        def test_bad(prompt_lint):
            ask(prompt_lint, "It is 10:15:02. ", 1)
            ask(prompt_lint, "It is 10:16:40. ", 3)
        """
    )
    environment = {"PYTHONPATH": str(ROOT / ".import-root"), "PATH": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=pytester.path, env=environment, capture_output=True, text=True, check=False)
    assert "2 passed, 1 error" in run.stdout, run.stdout + run.stderr
    assert "error PL101 test: request 1, messages[0].content char 10" in run.stdout
