"""Files and folders to sources and traces."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from .code.analysis import Language, language_of
from .errors import UnusableInput
from .ignore_files import IgnoreRules

_SKIPPED_FOLDERS = {
    ".git",
    ".hg",
    "node_modules",
    "__pycache__",
    ".venv",
    "venv",
    ".tox",
    ".mypy_cache",
    ".ruff_cache",
    "dist",
    "build",
    "target",
    "vendor",
}
_SCRIPTS = {".js", ".mjs", ".cjs"}
_LARGEST_SCRIPT = 1 << 20
_HEAD, _LONG_LINE = 1 << 16, 400  # nobody writes lines that are as long on average
_TRACE_SUFFIXES = {".jsonl", ".ndjson", ".har", ".json", ".log"}


@dataclass(slots=True)
class Gathered:
    """What was named on the command line: sources, and traces (a folder's trace files are one trace)."""

    sources: list[tuple[Path, Language]] = field(default_factory=list)
    traces: list[list[Path]] = field(default_factory=list)
    from_folder: set[Path] = field(default_factory=set)
    stdin: bool = False
    unreadable: list[UnusableInput] = field(default_factory=list)


class SourceFilter(enum.Enum):
    """Which sources of a folder are checked. Traces are checked in any case: recorded traffic is seldom kept in git."""

    ALL = "all"
    NOT_IGNORED_BY_GIT = "not ignored by git"


def gather(paths: list[str], exclude: list[str], sources: SourceFilter = SourceFilter.NOT_IGNORED_BY_GIT) -> Gathered:
    """Sort paths. Raises: UnusableInput for one that does not exist."""
    found = Gathered()
    for name in paths:
        path = Path(name)
        if name == "-":
            found.stdin = True
        elif path.is_dir():
            _folder(path, exclude, found, sources)
        elif path.exists():  # also a pipe: `check <(zcat trace.jsonl.gz)`
            language = language_of(name)
            if language is not None:
                found.sources.append((path, language))
            else:
                found.traces.append([path])
        else:
            raise UnusableInput(name, "no such file or folder")
    return found


def _folder(folder: Path, exclude: list[str], found: Gathered, sources: SourceFilter) -> None:
    traces: list[Path] = []
    rules = IgnoreRules.above(folder) if sources is SourceFilter.NOT_IGNORED_BY_GIT else None
    for path, ignored in _walk(folder, exclude, found, rules):
        language = language_of(str(path))
        if language is not None:
            if not ignored and not _is_bundle(path):
                found.sources.append((path, language))
        elif path.suffix in _TRACE_SUFFIXES:
            traces.append(path)
            found.from_folder.add(path)
    if traces:
        found.traces.append(traces)


def _is_bundle(path: Path) -> bool:
    """Generated scripts that other sources were packed into: nobody repairs those."""
    if path.suffix not in _SCRIPTS:
        return False
    try:
        if ".min." in path.name or path.stat().st_size > _LARGEST_SCRIPT:
            return True
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:  # told when it is read
        return False
    return len(head) > _LONG_LINE * (head.count(b"\n") + 4)


def _walk(folder: Path, exclude: list[str], found: Gathered, rules: IgnoreRules | None) -> Iterator[tuple[Path, bool]]:
    """The files below a folder, and whether rules leave them out. What is below an ignored folder is ignored."""
    rules = rules.inside(folder) if rules is not None else None
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        found.unreadable.append(UnusableInput(str(folder), f"cannot be read: {error.strerror}"))
        return
    for path in paths:
        if any(fnmatch(str(path), glob) or fnmatch(path.name, glob) for glob in exclude):
            continue
        if path.is_dir():
            if path.name not in _SKIPPED_FOLDERS and not path.is_symlink():
                ignored = rules is not None and rules.ignores(path)
                below = _walk(path, exclude, found, None if ignored else rules)
                yield from ((file, ignored or left_out) for file, left_out in below)
        elif path.is_file():
            yield path, rules is not None and rules.ignores(path)
