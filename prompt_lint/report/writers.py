"""The output formats by name."""

from __future__ import annotations

from collections.abc import Callable

from ..run import Report
from . import machine, page, plain

_WRITERS: dict[str, Callable[[Report, bool], str]] = {
    "concise": lambda report, values: plain.concise(report),
    "json": lambda report, values: machine.as_json(report, show_values=values),
    "jsonl": lambda report, values: machine.as_jsonl(report, show_values=values),
    "sarif": lambda report, values: machine.as_sarif(report),
    "github": lambda report, values: machine.as_github(report),
    "gitlab": lambda report, values: machine.as_gitlab(report),
    "junit": lambda report, values: machine.as_junit(report),
    "html": lambda report, values: page.as_html(report, show_values=values),
    "markdown": lambda report, values: plain.markdown(report, show_values=values),
}
OUTPUT_FORMATS = ("text", *_WRITERS)


def render(report: Report, output_format: str, *, show_values: bool, colour: bool) -> str:
    """The report in a format."""
    if output_format == "text":
        return plain.TextWriter(colour=colour, show_values=show_values).write(report)
    return _WRITERS[output_format](report, show_values)
