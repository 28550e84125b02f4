"""The report: all checks, for a person or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from ..config import ResolvedConfig
from .finding import Finding, Health
from .software import check_software, missing_packages

_COLOURS = {Health.OK: "green", Health.WARNING: "yellow", Health.BROKEN: "bold red"}


def examine(resolved: ResolvedConfig) -> list[Finding]:
    """Run the checks. Those that need a package which is not installed are left out: that itself is a finding."""
    findings = [_configuration(resolved), *check_software()]
    missing = missing_packages()
    if not missing:
        findings += _checks_with_packages(resolved)
    return findings


def is_broken(findings: Sequence[Finding]) -> bool:
    """Whether the server cannot start."""
    return any(finding.health is Health.BROKEN for finding in findings)


def print_report(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Write the report to the standard output."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode({"findings": findings})).decode() + "\n")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        found = finding.found if finding.remedy is None else f"{finding.found}\n→ {finding.remedy}"
        table.add_row(finding.topic, f"[{_COLOURS[finding.health]}]{finding.health.value}[/]", _plain(found))
    console = Console()
    console.print(table)
    wrong = sum(finding.health is Health.BROKEN for finding in findings)
    console.print(f"\n{wrong} broken." if wrong else "\nNothing is broken: `sessile serve` starts.", style="bold")


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


def _checks_with_packages(resolved: ResolvedConfig) -> Iterator[Finding]:
    from .inference import check_inference
    from .machine import check_machine

    yield from check_machine(resolved.config)
    yield from check_inference(resolved.config)


def _configuration(resolved: ResolvedConfig) -> Finding:
    changed = [f"{name} from {origin}" for name, origin in resolved.origins.items()]
    return Finding(topic="configuration", found=", ".join(changed) or "all defaults")
