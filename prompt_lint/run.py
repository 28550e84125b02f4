"""One check: inputs in, a report out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from .code.analysis import Language, analyse_source, language_of
from .engine import TraceLinter, TraceOptions, TraceSummary
from .errors import UnusableInput
from .findings import Finding, Location, Severity
from .fixes.trace import Repair
from .inputs import Gathered
from .readers.case_file import vocabulary_decoder
from .readers.detect import open_trace
from .rendering import ChatTemplate
from .request import Request
from .rules.catalogue import CATALOGUE
from .selection import Selection, apply_ignores
from .source_files import read_source, source_of
from .strips import Strip


@dataclass
class Report:
    """What a check found. `unusable` inputs are never clean."""

    findings: list[Finding] = field(default_factory=list)
    summaries: list[tuple[str, TraceSummary]] = field(default_factory=list)
    strips: list[tuple[str, list[Strip]]] = field(default_factory=list)
    repairs: list[tuple[str, Repair]] = field(default_factory=list)
    unusable: list[UnusableInput] = field(default_factory=list)
    files: int = 0

    def worst(self) -> Severity | None:
        """The highest severity, or None."""
        return max((f.severity for f in self.findings), default=None)


@dataclass(frozen=True)
class CheckOptions:
    """How to check."""

    selection: Selection
    trace: TraceOptions
    input_format: str | None = None
    stdin_name: str = "-"
    repair: bool = False


class Check:
    """Runs over everything that was gathered."""

    def __init__(self, options: CheckOptions) -> None:
        self._options = options
        self.report = Report()

    def run(self, gathered: Gathered) -> Report:
        """Check all inputs."""
        for error in gathered.unreadable:
            self._unusable(error)
        for path, language in gathered.sources:
            self._source(path, language)
        for paths in gathered.traces:
            self._trace(paths, quiet=gathered.from_folder)
        if gathered.stdin:
            self._stdin()
        kept = [f for f in self.report.findings if self._options.selection.keeps(f) or f.rule == "PL903"]
        self.report.findings = kept
        return self.report

    def _unusable(self, error: UnusableInput) -> None:
        self.report.unusable.append(error)
        info = CATALOGUE["PL903"]
        location = Location(error.file, line=error.line)
        self.report.findings.append(
            Finding("PL903", info.name, Severity.ERROR, error.reason, location, info.fix, scope="input")
        )

    def _source(self, path: Path, language: Language) -> None:
        try:
            self._text(str(path), read_source(path).text, language)
        except UnusableInput as error:
            self._unusable(error)

    def _text(self, name: str, text: str, language: Language) -> None:
        self.report.files += 1
        findings = [f for f in analyse_source(name, text, language) if self._options.selection.keeps(f)]
        self.report.findings += apply_ignores(name, text, findings)

    def _stdin(self) -> None:
        name = self._options.stdin_name
        language = language_of(name)
        if language is None:
            self._streams(name, [(name, sys.stdin.buffer)], frozenset())
            return
        try:
            before = len(self.report.findings)
            self._text(name, source_of(name, sys.stdin.buffer.read()).text, language)
            unwritten = self.report.findings[before:]  # there is no file to repair
            self.report.findings[before:] = [msgspec.structs.replace(f, edits=()) for f in unwritten]
        except UnusableInput as error:
            self._unusable(error)

    def _trace(self, paths: list[Path], quiet: set[Path]) -> None:
        """The trace files of one argument are one trace; files of a folder that are no trace are stepped over."""
        name = str(paths[0]) if len(paths) == 1 else str(paths[0].parent)
        opened: list[tuple[str, IO[bytes]]] = []
        for path in paths:
            try:
                opened.append((str(path), path.open("rb")))
            except OSError as error:
                self._unusable(UnusableInput(str(path), f"cannot be read: {error.strerror}"))
        try:
            self._streams(name, opened, frozenset(str(p) for p in quiet))
        finally:
            for _, stream in opened:
                stream.close()

    def _streams(self, name: str, streams: list[tuple[str, IO[bytes]]], quiet: frozenset[str]) -> None:
        linters: dict[str, TraceLinter] = {}
        indices: dict[str, int] = {}
        for file, stream in streams:
            try:
                trace = open_trace(file, stream, self._options.input_format)
            except UnusableInput as error:
                code = self._case_of_code(file)
                if not code and file not in quiet:
                    self._unusable(error)
                continue
            key = file if trace.format == "case" else trace.format
            if key not in linters:
                linters[key] = TraceLinter(self._with(trace.extras), repair=self._options.repair)
            self.report.files += 1
            indices[key] = self._feed(linters[key], trace.requests, indices.get(key, 0))
            for unreadable in trace.errors.told():
                self._unusable(unreadable)
        for key, linter in linters.items():
            self._take(name if len(linters) == 1 else f"{name} ({key})", linter)

    def _take(self, name: str, linter: TraceLinter) -> None:
        if not linter.summary.requests:
            return
        self.report.findings += [f for f in linter.findings() if self._options.selection.keeps(f)]
        self.report.summaries.append((name, linter.summary))
        self.report.strips.append((name, linter.strips.strips))
        if linter.repair:
            self.report.repairs.append((name, linter.repair))

    def _feed(self, linter: TraceLinter, requests: Iterator[Request], index: int) -> int:
        try:
            for request in requests:
                request.index = index
                linter.feed(request)
                index += 1
        except UnusableInput as error:
            self._unusable(error)
        return index

    def _case_of_code(self, file: str) -> bool:
        """A case file of kind code holds a source text."""
        try:
            case = msgspec.json.decode(Path(file).read_bytes())
            language = Language(case["language"])
            text = str(case["code"])
        except (OSError, msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError):
            return False
        self._text(file, text, language)
        return True

    def _with(self, extras: dict[str, object]) -> TraceOptions:
        """Options with the template and vocabulary that came with the input, where the user gave none."""
        options = self._options.trace
        changes: dict[str, Any] = {}
        template, vocabulary, bos = extras.get("chat_template"), extras.get("vocab"), extras.get("bos_token_id")
        if isinstance(template, str) and options.template is None:
            changes["template"] = ChatTemplate(template)
        if isinstance(vocabulary, dict):
            changes["decode"] = vocabulary_decoder(vocabulary)
        if isinstance(bos, int) and options.bos_token_id is None:
            changes["bos_token_id"] = bos
        return dataclasses.replace(options, **changes)
