"""text, concise, markdown and statistics."""

from __future__ import annotations

import re
from collections import Counter

from ..engine import TraceSummary
from ..findings import Finding, Location, redacted
from ..run import Report

_COLOURS = {"error": "\033[31m", "warning": "\033[33m", "info": "\033[36m"}
_BOLD, _DIM, _RESET = "\033[1m", "\033[2m", "\033[0m"
_MOST_SHAPE = 48  # the shape of a longer text says nothing
_MOST_VALUE = 160
_MARKUP = re.compile(r"[|<`*_\[\]]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def place_of(location: Location) -> str:
    """`file:line:column`, or `file: request N, path, char C`."""
    file = printable(location.file)
    if location.path is None:
        parts = [file, *(str(n) for n in (location.line, location.column) if n is not None)]
        return ":".join(parts)
    char = "" if location.char is None else f" char {location.char}"
    return f"{file}: request {location.request}, {printable(location.path)}{char}"


def printable(text: str) -> str:
    """A text of the input on one line: what moves the cursor, or turns the writing round, is escaped."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def cost_of(finding: Finding) -> str:
    """What it costs, in words; empty for nothing."""
    cost = finding.cost
    if not cost.tokens:
        return ""
    parts = [f"{cost.tokens:,} tokens computed again ({cost.share:.0%} of the prompt)"]
    if cost.milliseconds:
        parts.append(f"{cost.milliseconds:,.0f} ms")
    if cost.money:
        parts.append(f"${cost.money:.4f}")
    return ", ".join(parts)


def shown(value: str | None, *, show_values: bool) -> str | None:
    """A value as it may be printed: its shape only, unless values are asked for."""
    if value is None:
        return None
    if not show_values and len(value) > _MOST_SHAPE:
        return f"{len(value)} characters"
    short = value if len(value) <= _MOST_VALUE else value[:_MOST_VALUE] + "…"
    return repr(short if show_values else redacted(short))


class TextWriter:
    """For people: a paragraph a finding."""

    def __init__(self, *, colour: bool, show_values: bool) -> None:
        self._colour = colour
        self._show_values = show_values

    def _paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_RESET}" if self._colour else text

    def write(self, report: Report) -> str:
        """The whole report."""
        parts = [self._finding(f) for f in report.findings]
        parts += [summary_line(name, s) for name, s in report.summaries]
        parts.append(verdict_line(report))
        return "\n".join(parts) + "\n"

    def _finding(self, finding: Finding) -> str:
        word = finding.severity.word
        where, painted = self._paint(place_of(finding.location), _BOLD), self._paint(word, _COLOURS[word])
        head = f"{where}: {painted} {finding.rule} {finding.name}"
        lines = [head, f"  {printable(finding.message)}"]
        if finding.pair:
            lines[1] += f" (request {finding.pair[0]} → {finding.pair[1]}, {finding.scope})"
        was, now = shown(finding.was, show_values=self._show_values), shown(finding.now, show_values=self._show_values)
        if was is not None or now is not None:
            lines.append(self._paint(f"  was {was or 'nothing'}, now {now or 'nothing'}", _DIM))
        if cost_of(finding):
            lines.append(f"  costs {cost_of(finding)}")
        lines.append(self._paint(f"  fix: {finding.fix}", _DIM))
        return "\n".join(lines) + "\n"


def concise(report: Report) -> str:
    """One line a finding."""
    lines = []
    for finding in report.findings:
        lost = f" [-{finding.cost.tokens} tokens]" if finding.cost.tokens else ""
        what = f"{finding.severity.word} {finding.rule} {printable(finding.message)}"
        lines.append(f"{place_of(finding.location)}: {what}{lost}")
    return "\n".join([*lines, verdict_line(report)]) + "\n"


def summary_line(name: str, summary: TraceSummary) -> str:
    """What a trace held."""
    rate = summary.reused_tokens / summary.prompt_tokens if summary.prompt_tokens else 0.0
    text = (
        f"{printable(name)}: {_counted(summary.requests, 'request')} in {_counted(summary.lineages, 'lineage')}, "
        f"{summary.prompt_tokens:,} prompt tokens, "
        f"{rate:.1%} reused, {summary.lost_tokens:,} lost to findings"
    )
    if summary.measured_prompt_tokens:
        measured = summary.measured_cached_tokens / summary.measured_prompt_tokens
        text += f" (measured: {measured:.1%} of {summary.measured_prompt_tokens:,})"
    return text


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def verdict_line(report: Report) -> str:
    """The last line."""
    counts = Counter(f.severity.word for f in report.findings)
    if not counts:
        return "All clean." if report.files else "Nothing was checked."
    parts = [
        f"{counts[word]} {word}{'s' if counts[word] > 1 and word != 'info' else ''}"
        for word in ("error", "warning", "info")
        if counts[word]
    ]
    fixable = sum(1 for f in report.findings if f.edits)
    more = f" {fixable} can be repaired with --fix." if fixable else ""
    return f"Found {', '.join(parts)}.{more}"


def statistics(report: Report) -> str:
    """Findings and lost tokens by rule."""
    counts: Counter[str] = Counter(f.rule for f in report.findings)
    lost: Counter[str] = Counter()
    names = {f.rule: f.name for f in report.findings}
    for finding in report.findings:
        lost[finding.rule] += finding.cost.tokens
    lines = []
    for rule in sorted(counts, key=lambda r: -counts[r]):
        tokens = f"{lost[rule]:>10,} lost tokens" if lost[rule] else ""  # of code nobody knows
        lines.append(f"{counts[rule]:>6}  {rule}  {names[rule]:<30} {tokens}".rstrip())
    return "\n".join(lines) + ("\n" if lines else "")


def markdown(report: Report, *, show_values: bool) -> str:
    """A table for a comment on a pull request."""
    lines = ["## prompt-lint", "", verdict_line(report), ""]
    if report.findings:
        lines += ["| severity | rule | where | what | lost tokens |", "|---|---|---|---|---|"]
    for finding in report.findings:
        what = _MARKUP.sub(r"\\\g<0>", printable(finding.message))
        if show_values and finding.was is not None:
            what += f" ({_as_code(repr(finding.was[:60]))})"
        where = _as_code(place_of(finding.location))
        cells = (finding.severity.word, f"{finding.rule} {finding.name}", where, what, finding.cost.tokens or "")
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    lines += ["", *(f"- {summary_line(name, s)}" for name, s in report.summaries)]
    return "\n".join(lines).rstrip() + "\n"


def _as_code(text: str) -> str:
    """A piece of code in a cell of a table."""
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")
