"""json, jsonl, sarif, github, gitlab and junit."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from ..findings import Finding, Severity
from ..rules.catalogue import CATALOGUE
from ..run import Report
from ..selection import fingerprint
from .plain import cost_of, place_of

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(report: Report, *, show_values: bool) -> str:
    """`{"version": 1, "findings": […], "summary": {…}}`."""
    document = {
        "version": 1,
        "findings": [_finding(f, show_values=show_values) for f in report.findings],
        "summary": summary(report),
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def as_jsonl(report: Report, *, show_values: bool) -> str:
    """One finding a line."""
    return "".join(json.dumps(_finding(f, show_values=show_values), ensure_ascii=False) + "\n" for f in report.findings)


def _finding(finding: Finding, *, show_values: bool) -> dict[str, Any]:
    found = finding.to_json()
    if show_values:
        found["was"], found["now"] = finding.was, finding.now
    return found


def summary(report: Report) -> dict[str, Any]:
    """Totals of a report."""
    counts = Counter(f.severity.word for f in report.findings)
    return {
        "files": report.files,
        "errors": counts["error"],
        "warnings": counts["warning"],
        "infos": counts["info"],
        "lost_tokens": sum(f.cost.tokens for f in report.findings),
        "unusable": [str(error) for error in report.unusable],
        "traces": {name: asdict(s) for name, s in report.summaries},
    }


_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def as_sarif(report: Report) -> str:
    """SARIF 2.1.0."""
    rules = sorted({f.rule for f in report.findings})
    run = {
        "tool": {
            "driver": {
                "name": "prompt-lint",
                "version": version(),
                "informationUri": "https://github.com/sessile/sessile",
                "rules": [_sarif_rule(code) for code in rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(f, rules.index(f.rule)) for f in report.findings],
    }
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def version() -> str:
    """The installed version, or 0 from a checkout."""
    try:
        return metadata.version("sessile")
    except metadata.PackageNotFoundError:
        return "0"


def _sarif_rule(code: str) -> dict[str, Any]:
    info = CATALOGUE[code]
    return {
        "id": code,
        "name": info.name,
        "shortDescription": {"text": info.what},
        "fullDescription": {"text": info.why},
        "help": {"text": info.fix},
    }


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    place = finding.location
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.file)}}
    if place.line:
        physical["region"] = {"startLine": place.line, **({"startColumn": place.column} if place.column else {})}
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.path:
        location["logicalLocations"] = [
            {"fullyQualifiedName": f"request {place.request}: {place.path}", "kind": "member"}
        ]
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. {cost_of(finding)}".strip()},
        "locations": [location],
        "partialFingerprints": {"promptLint/v1": _hash(finding)},
        "properties": {"lost_tokens": finding.cost.tokens, "pair": list(finding.pair) if finding.pair else None},
    }


def _uri(file: str) -> str:
    return "stdin" if file == "-" else quote(Path(file).as_posix(), safe="/~!$&'()*+,;=@", errors="replace")


def _hash(finding: Finding) -> str:
    return hashlib.blake2b(fingerprint(finding).encode(), digest_size=16).hexdigest()


def as_github(report: Report) -> str:
    """Workflow commands."""
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
    lines = []
    for finding in report.findings:
        place = finding.location
        where = (
            f"file={_property(place.file)}"
            + (f",line={place.line}" if place.line else "")
            + (f",col={place.column}" if place.column else "")
        )
        title = f"title={finding.rule} {finding.name}"
        text = finding.message if place.path is None else f"{place_of(place)}: {finding.message}"
        lines.append(f"::{words[finding.severity]} {where},{title}::{_escaped(text)}")
    return "\n".join(lines) + ("\n" if lines else "")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A value in front of the colons, where these and commas stand between values."""
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def as_gitlab(report: Report) -> str:
    """GitLab's code quality report."""
    words = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.INFO: "info"}
    seen: Counter[str] = Counter()
    found = [
        {
            "description": f"{f.rule} {f.name}: {f.message}",
            "check_name": f.rule,
            "fingerprint": _unique(f, seen),
            "severity": words[f.severity],
            "location": {"path": f.location.file, "lines": {"begin": f.location.line or 1}},
        }
        for f in report.findings
    ]
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _unique(finding: Finding, seen: Counter[str]) -> str:
    """A fingerprint that stays when other findings come or go: equal ones are told apart by their number."""
    key = fingerprint(finding)
    seen[key] += 1
    return hashlib.blake2b(f"{seen[key]}|{key}".encode(), digest_size=16).hexdigest()


_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    """The text with a question mark for each character that XML cannot hold."""
    return _NO_XML.sub("?", text)


def as_junit(report: Report) -> str:
    """One test case a finding; a clean report is one passed case."""
    failed = [f for f in report.findings if f.severity is not Severity.INFO]
    suite = ElementTree.Element(
        "testsuite", name="prompt-lint", tests=str(max(1, len(report.findings))), failures=str(len(failed)), errors="0"
    )
    if not report.findings:
        ElementTree.SubElement(suite, "testcase", classname="prompt-lint", name="clean")
    for finding in report.findings:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_xml(finding.location.file),
            name=_xml(f"{finding.rule} {place_of(finding.location)}"),
        )
        if finding in failed:
            failure = ElementTree.SubElement(case, "failure", type=finding.severity.word, message=_xml(finding.message))
            failure.text = f"{cost_of(finding)}\n{finding.fix}".strip()
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
