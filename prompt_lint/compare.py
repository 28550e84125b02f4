"""Two reports side by side: what is new, what is gone, what the cache served."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from .findings import Finding, Severity
from .run import Report


def _kinds(report: Report) -> Counter[tuple[str, str]]:
    return Counter((f.rule, f.location.path or f.message) for f in report.findings)


def _rate(report: Report) -> float:
    prompt = sum(s.prompt_tokens for _, s in report.summaries)
    return sum(s.reused_tokens for _, s in report.summaries) / prompt if prompt else 0.0


@dataclass(frozen=True)
class Comparison:
    """Findings by rule and place, and hit rates."""

    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    rates: tuple[float, float]
    lost: tuple[int, int]

    @property
    def got_worse(self) -> bool:
        """True when something new at warning or above appeared, or the hit rate fell by a point."""
        return any(f.severity >= Severity.WARNING for f in self.new) or self.rates[1] < self.rates[0] - 0.01

    def render(self, output_format: str) -> str:
        """As text, json or markdown."""
        if output_format == "json":
            document: dict[str, Any] = {
                "version": 1,
                "new": [f.to_json() for f in self.new],
                "gone": [f.to_json() for f in self.gone],
                "hit_rate": list(self.rates),
                "lost_tokens": list(self.lost),
                "got_worse": self.got_worse,
            }
            return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        bullet = "- " if output_format == "markdown" else ""
        lines = [
            f"{bullet}hit rate {self.rates[0]:.1%} → {self.rates[1]:.1%}",
            f"{bullet}lost tokens {self.lost[0]:,} → {self.lost[1]:,}",
        ]
        for word, findings in (("new", self.new), ("gone", self.gone)):
            lines += [
                f"{bullet}{word}: {f.severity.word} {f.rule} {f.name} at {f.location.path or f.location.line}"
                for f in findings
            ]
        return "\n".join(lines) + "\n"


def compare(before: Report, after: Report) -> Comparison:
    """Compare by rule and place; a kind that was there before is not new, however often it occurs."""
    old, new = _kinds(before), _kinds(after)
    return Comparison(
        new=_one_a_kind(after.findings, old),
        gone=_one_a_kind(before.findings, new),
        rates=(_rate(before), _rate(after)),
        lost=(sum(f.cost.tokens for f in before.findings), sum(f.cost.tokens for f in after.findings)),
    )


def _one_a_kind(findings: list[Finding], known: Counter[tuple[str, str]]) -> tuple[Finding, ...]:
    seen: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = finding.rule, finding.location.path or finding.message
        if key not in known:
            seen.setdefault(key, finding)
    return tuple(seen.values())
