"""Each promise and each bound of docs/security.md names tests that there are, and settings that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from sessile.server.config import all_settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SECTIONS = {"## What is promised, and where it is tested": 15, "## Bounds": 18}  # and how many rows there are at least


def rows_of(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    part = PAGE[PAGE.index(section) :].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def functions_in(path: Path) -> set[str]:
    """The names of a file's functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_names_tests_that_there_are(section: str) -> None:
    rows = rows_of(section)
    assert len(rows) >= SECTIONS[section]
    for row in rows:
        named = re.findall(r"`([^`]*)`", row[-1])
        assert named, f"{row[0]!r} names no test"
        file = ""
        for name in named:
            path, _, test = name.partition("::")
            file = path or file  # ``::test`` is one more of the same file
            assert (ROOT / file).is_file(), f"there is no {file!r}"
            assert not test or test in functions_in(ROOT / file), f"there is no {test!r} in {file}"


def test_every_flag_is_a_setting() -> None:
    flags = set(re.findall(r"`(--[a-z-]+)`", PAGE))
    others = {"--tenant", "--name", "--scopes"}  # of ``sessile keys create``
    assert flags - others <= {setting.flag for setting in all_settings()}
