"""What .gitignore leaves out, as git itself sees it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sessile.prompt_lint.cli import main
from sessile.prompt_lint.inputs import SourceFilter, gather

FILES = (
    *("a.py", "b.py", "gen/a.py", "gen/deep/c.py", "keep/a.py", "keep/gen/a.py", "x/y/z/a.py", "x/a1.py", "x/ab.py"),
    *("#odd.py", "!odd.py", "sp ace.py", "x/[b].py", "docs/a.py", "docs/api/a.py", "docs/api/keep.py"),
)
PATTERNS = (
    *("a.py", "/a.py", "gen/", "gen", "/gen/", "keep/gen", "x/**", "x/**/a.py", "**/z", "x/a?.py", "x/a[0-9].py"),
    *(
        "x/a[!0-9].py",
        "\\#odd.py",
        "\\!odd.py",
        "sp ace.py  ",
        "*.py\n!b.py",
        "docs/*\n!docs/api/",
        "[b",
        "x/\\[b\\].py",
    ),
    *("# a.py", "docs/**/keep.py", "**", "*/a.py", "deep/", "y/z/", "x/y/z", "api/keep.py"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def seen(folder: Path, sources: SourceFilter = SourceFilter.NOT_IGNORED_BY_GIT) -> set[str]:
    found = gather([str(folder)], [], sources).sources
    return {path.relative_to(folder).as_posix() for path, _ in found}


def seen_by_git(folder: Path) -> set[str]:
    command = ["git", "-C", str(folder), "ls-files", "-z", "--others", "--exclude-standard", "*.py"]
    return {
        name for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0") if name
    }


def test_patterns_mean_what_they_mean_to_git(folder: Path) -> None:
    for pattern in PATTERNS:
        (folder / ".gitignore").write_text(pattern + "\n")
        assert seen(folder) == seen_by_git(folder), pattern
    assert seen(folder, SourceFilter.ALL) == set(FILES)


def test_inner_files_and_outer_ones(folder: Path) -> None:
    (folder / ".gitignore").write_text("a.py\n")
    (folder / "keep" / ".gitignore").write_text("!a.py\n/gen/\n")
    assert seen(folder) == seen_by_git(folder)
    assert seen(folder / "docs") == {"api/keep.py"}
    assert seen(folder / "keep") == {"a.py"}


def test_traces_are_read_whatever_git_ignores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".gitignore").write_text("logs/\n*.py\n")
    (folder / "logs").mkdir()
    (folder / "logs" / "t.jsonl").write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}))
    assert main(["check", str(folder), "--isolated", "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["files"] == 1
    assert main(["check", str(folder), "--isolated", "--no-gitignore", "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["files"] == 1 + len(FILES)
