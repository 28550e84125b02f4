"""Applying edits to source files."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..code.analysis import is_readable
from ..errors import UnusableInput
from ..findings import Edit, Finding
from ..source_files import SourceFile, read_source


@dataclass(frozen=True)
class FixedFile:
    """A file before and after its repair, and the findings that were repaired in it."""

    name: str
    before: SourceFile
    after: SourceFile
    repaired: list[Finding]


def fixable(findings: Iterable[Finding], *, unsafe: bool) -> list[Finding]:
    """The findings whose edits may be applied."""
    return [f for f in findings if f.edits and (unsafe or all(e.safe for e in f.edits))]


def fixed_file(name: str, source: SourceFile, findings: Iterable[Finding]) -> FixedFile:
    """A file with the edits of findings, each finding's whole or not at all.

    A finding is left out whose place overlaps that of another one, or whose edits would leave a text that is no
    program any more.
    """
    chosen: dict[tuple[Edit, ...], list[Finding]] = {}
    after = source
    for finding in (f for f in findings if f.edits):
        if finding.edits in chosen:
            chosen[finding.edits].append(finding)
        elif not any(_overlap(finding.edits, other) for other in chosen):
            edits = sorted((e for group in (*chosen, finding.edits) for e in group), key=lambda e: (e.start, e.end))
            changed = source.with_edits(edits)
            if is_readable(name, changed.text):
                chosen[finding.edits] = [finding]
                after = changed
    return FixedFile(name, source, after, [finding for group in chosen.values() for finding in group])


def _overlap(first: tuple[Edit, ...], second: tuple[Edit, ...]) -> bool:
    """True when the stretches that two repairs touch have a place in common."""
    return first[0].start <= second[-1].end and second[0].start <= first[-1].end


def fixed_files(findings: Iterable[Finding], *, unsafe: bool) -> list[FixedFile]:
    """What the repairs make of each file. Raises: UnusableInput for one that cannot be read any more."""
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in fixable(findings, unsafe=unsafe):
        groups[finding.location.file].append(finding)
    return [fixed_file(name, read_source(Path(name)), group) for name, group in sorted(groups.items())]


def apply_fixes(findings: list[Finding], *, unsafe: bool) -> tuple[list[Finding], int]:
    """Write the edits. Returns what is left and how many findings were repaired.

    Raises: UnusableInput for a file that cannot be written.
    """
    repaired: list[Finding] = []
    for file in fixed_files(findings, unsafe=unsafe):
        try:
            Path(file.name).write_bytes(file.after.content())
        except OSError as error:
            raise UnusableInput(file.name, f"cannot be written: {error.strerror}") from error
        repaired += file.repaired
    return [f for f in findings if f not in repaired], len(repaired)


def diffs(findings: list[Finding], *, unsafe: bool) -> str:
    """What `apply_fixes` would change, as diffs."""
    return "".join(_diff(file) for file in fixed_files(findings, unsafe=unsafe))


def _diff(file: FixedFile) -> str:
    before, after = (text.text.splitlines(keepends=True) for text in (file.before, file.after))
    return "".join(difflib.unified_diff(before, after, file.name, file.name))
