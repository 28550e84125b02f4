"""Applying edits to source files."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ..findings import Edit, Finding


def fixable(findings: Iterable[Finding], *, unsafe: bool) -> list[Finding]:
    """The findings whose edits may be applied."""
    return [f for f in findings if f.edits and (unsafe or all(e.safe for e in f.edits))]


def fixed_text(text: str, findings: Iterable[Finding]) -> str:
    """The text with the edits of all findings; edits that overlap an earlier one are left out."""
    edits = sorted({edit for finding in findings for edit in finding.edits}, key=lambda e: (e.start, e.end))
    pieces, position = [], 0
    for edit in edits:
        if edit.start < position:
            continue
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*pieces, text[position:]])


def by_file(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Findings grouped by file."""
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.location.file].append(finding)
    return groups


def diff_of(file: str, before: str, after: str) -> str:
    """A unified diff."""
    return "".join(difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), file, file))


def apply_fixes(findings: list[Finding], *, unsafe: bool) -> tuple[list[Finding], int]:
    """Write the edits. Returns what is left and how many findings were repaired."""
    chosen = fixable(findings, unsafe=unsafe)
    for file, group in by_file(chosen).items():
        path = Path(file)
        text = path.read_text(encoding="utf-8")
        path.write_text(fixed_text(text, group), encoding="utf-8")
    return [f for f in findings if f not in chosen], len(chosen)


def diffs(findings: list[Finding], *, unsafe: bool) -> str:
    """What `apply_fixes` would change, as diffs."""
    parts = []
    for file, group in sorted(by_file(fixable(findings, unsafe=unsafe)).items()):
        text = Path(file).read_text(encoding="utf-8")
        parts.append(diff_of(file, text, fixed_text(text, group)))
    return "".join(parts)


__all__ = ["Edit", "apply_fixes", "by_file", "diffs", "fixable", "fixed_text"]
