"""Which findings are shown: selected rules, ignores on lines and files, the baseline."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from .errors import LintConfigError
from .findings import Finding, Location, Severity
from .rules.catalogue import CATALOGUE, OFF_BY_DEFAULT


def expand_codes(codes: Iterable[str]) -> frozenset[str]:
    """Rule ids that some ids and prefixes (or ALL, or names) stand for.

    Raises: LintConfigError for one that fits nothing.
    """
    found: set[str] = set()
    for code in codes:
        fitting = {c for c, info in CATALOGUE.items() if code == "ALL" or c.startswith(code) or info.name == code}
        if not fitting:
            raise LintConfigError(f"no rule fits {code!r}; `prompt-lint rules` lists them")
        found |= fitting
    return frozenset(found)


@dataclass(frozen=True)
class Selection:
    """The rules that are on, and those that are off in some files."""

    enabled: frozenset[str]
    per_file: tuple[tuple[str, frozenset[str]], ...] = ()

    @classmethod
    def of(
        cls,
        select: Iterable[str] | None = None,
        extend: Iterable[str] = (),
        ignore: Iterable[str] = (),
        per_file: dict[str, list[str]] | None = None,
    ) -> Selection:
        """As in ruff: the more specific prefix wins over the less specific one."""
        chosen = list(select) if select else None
        enabled = expand_codes(chosen) if chosen else frozenset(CATALOGUE) - OFF_BY_DEFAULT
        enabled |= expand_codes(extend)
        for code in ignore:
            fitting = expand_codes([code])
            explicit = {c for c in (*(chosen or ()), *extend) if len(c) > len(code) and c in CATALOGUE}
            enabled -= fitting - explicit
        return cls(enabled, tuple((glob, expand_codes(codes)) for glob, codes in (per_file or {}).items()))

    def keeps(self, finding: Finding) -> bool:
        """True when the finding's rule is on in its file."""
        if finding.rule not in self.enabled:
            return False
        file = finding.location.file
        return not any(finding.rule in codes and _fits(file, glob) for glob, codes in self.per_file)


def _fits(file: str, glob: str) -> bool:
    path = Path(file)
    return (
        fnmatch(file, glob)
        or fnmatch(path.name, glob)
        or any(fnmatch(str(parent), glob.rstrip("/*")) for parent in path.parents)
    )


_IGNORE = re.compile(r"(?:#|//|/\*|\{#|<!--)\s*prompt-lint:\s*ignore(-file)?\s*(?:\[([\w, -]*)\])?")


@dataclass(slots=True)
class _Comment:
    line: int
    codes: frozenset[str]
    whole_file: bool
    alone: bool
    used: bool = False


def apply_ignores(file: str, text: str, findings: list[Finding]) -> list[Finding]:
    """Drop what comments ignore; report the comments that ignore nothing (PL900)."""
    comments = list(_comments(text))
    if not comments:
        return findings
    kept = [f for f in findings if not _ignored(f, comments)]
    info = CATALOGUE["PL900"]
    kept += [
        Finding(
            "PL900",
            info.name,
            Severity.WARNING,
            "this ignore comment ignores nothing",
            Location(file, line=c.line),
            info.fix,
            scope="code",
        )
        for c in comments
        if not c.used
    ]
    return kept


def _comments(text: str) -> Iterator[_Comment]:
    for number, line in enumerate(text.split("\n"), 1):
        match = _IGNORE.search(line)
        if match and _in_comment(line, match.start()):
            codes = frozenset(c.strip() for c in (match.group(2) or "").split(",") if c.strip())
            yield _Comment(number, codes, bool(match.group(1)), not line[: match.start()].strip())


def _in_comment(line: str, at: int) -> bool:
    """False inside a string: an odd number of quotes stands before the comment."""
    return all(line.count(quote, 0, at) % 2 == 0 for quote in "\"'`")


def _ignored(finding: Finding, comments: list[_Comment]) -> bool:
    for comment in comments:
        covers = comment.whole_file or finding.location.line == comment.line + (1 if comment.alone else 0)
        if covers and (
            not comment.codes or any(finding.rule.startswith(c) or finding.name == c for c in comment.codes)
        ):
            comment.used = True
            return True
    return False


def fingerprint(finding: Finding) -> str:
    """What stays the same when lines move: rule, file and place."""
    place = finding.location.path or finding.message
    return f"{finding.rule}|{finding.location.file}|{place}"


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Known findings: how many of each fingerprint."""

    version: int
    known: dict[str, int]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Baseline:
        """A baseline of these findings."""
        return cls(1, dict(sorted(Counter(fingerprint(f) for f in findings).items())))

    def new(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that are not known."""
        left = Counter(self.known)
        found = []
        for finding in findings:
            key = fingerprint(finding)
            if left[key] > 0:
                left[key] -= 1
            else:
                found.append(finding)
        return found


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file. Raises: LintConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise LintConfigError(f"{path}: {error}") from error
