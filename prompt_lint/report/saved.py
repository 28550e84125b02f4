"""A report that was written with `--output-format json`, read back to be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..engine import TraceSummary
from ..errors import UnusableInput
from ..findings import Cost, Finding, Location, Severity
from ..run import Report

_VERSION = 1


def saved_report(path: Path) -> Report | None:
    """The report in a file; None for a file that is something else.

    Raises: UnusableInput for a report of another version, or with a field of another type.
    """
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(document, dict) or not {"version", "findings", "summary"} <= document.keys():
        return None
    if document["version"] != _VERSION:
        raise UnusableInput(str(path), f"a report of version {document['version']}; this one reads version {_VERSION}")
    try:
        return _report(path, document)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise UnusableInput(str(path), f"not a whole report: {error}") from error


def _report(path: Path, document: dict[str, Any]) -> Report:
    summary = document["summary"]
    return Report(
        findings=[_finding(found) for found in document["findings"]],
        summaries=[(name, TraceSummary(**totals)) for name, totals in summary["traces"].items()],
        unusable=[
            UnusableInput(str(path), f"made from input that could not be read: {u}") for u in summary["unusable"]
        ],
        files=int(summary["files"]),
    )


def _finding(found: dict[str, Any]) -> Finding:
    return Finding(
        rule=str(found["rule"]),
        name=str(found["name"]),
        severity=Severity.of(found["severity"]),
        message=str(found["message"]),
        location=msgspec.convert(found["location"], Location),
        fix=str(found["fix"]),
        pair=tuple(found["pair"]) if found["pair"] else None,
        cost=Cost(int(found["lost_tokens"]), float(found["lost_share"]), found["lost_ms"], found["lost_cost"]),
        scope=str(found["scope"]),
    )
