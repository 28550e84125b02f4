"""Findings gathered by cause, so that severity is judged for the cause and not for each occurrence."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .findings import Cost, Finding, Location, Severity
from .prices import Prices
from .prompt import Prompt
from .rules.base import Verdict
from .rules.catalogue import CATALOGUE
from .severity import CauseLoss, Recurrence, Thresholds, judge

_TINY_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Loss:
    """What one occurrence lost, of how many prompt tokens."""

    tokens: int
    prompt_tokens: int


@dataclass(slots=True)
class _Pending:
    verdict: Verdict
    finding: Finding
    key: tuple[str, object, str]
    cap: Severity | None


class Causes:
    """Collects occurrences and turns them into findings at the end."""

    def __init__(
        self, thresholds: Thresholds, prices: Prices, prefill_rate: float | None, *, tiny_tokens: int = _TINY_TOKENS
    ) -> None:
        self._tiny_tokens = tiny_tokens
        self._thresholds = thresholds
        self._prices = prices
        self._prefill_rate = prefill_rate
        self._pending: list[_Pending] = []
        self._losses: dict[tuple[str, object, str], CauseLoss] = {}
        self._recurrence: dict[tuple[str, object, str], Recurrence] = {}

    def measured_prefill_rate(self, rate: float | None) -> None:
        """Take over a rate (tokens a second) measured from the trace, unless one was given."""
        self._prefill_rate = self._prefill_rate or rate

    def add(
        self,
        verdict: Verdict,
        prompt: Prompt,
        pair: tuple[int, int] | None,
        path: str | None,
        char: int | None,
        loss: Loss,
        lineage: object,
        scope: str = "session",
        cap: Severity | None = None,
    ) -> None:
        """Record one occurrence of a rule's kind."""
        info = CATALOGUE[verdict.rule]
        place = verdict.path or path
        request = prompt.request
        finding = Finding(
            rule=verdict.rule,
            name=info.name,
            severity=Severity.INFO,
            message=verdict.message,
            location=Location(
                request.file, line=request.line, request=request.index, path=place, char=None if verdict.path else char
            ),
            fix=info.fix,
            pair=pair,
            cost=self._cost(loss, request.model),
            scope=scope,
            was=verdict.was,
            now=verdict.now,
        )
        key = (verdict.rule, lineage, place or "")
        self._losses.setdefault(key, CauseLoss()).add(loss.tokens, loss.prompt_tokens)
        if self._recurrence.get(key) is not Recurrence.EACH_REQUEST:
            self._recurrence[key] = verdict.recurrence
        self._pending.append(_Pending(verdict, finding, key, cap))

    def has(self, rule: str) -> bool:
        """True when a rule was seen."""
        return any(pending.verdict.rule == rule for pending in self._pending)

    def count(self, rule: str, lineage: object, path: str, loss: Loss) -> None:
        """Add to the loss of a cause that was already reported."""
        self._losses.setdefault((rule, lineage, path), CauseLoss()).add(loss.tokens, loss.prompt_tokens)

    def _cost(self, loss: Loss, model: str) -> Cost:
        share = loss.tokens / loss.prompt_tokens if loss.prompt_tokens else 0.0
        return Cost(loss.tokens, min(1.0, share), None, self._prices.loss(model, loss.tokens))

    def findings(self) -> list[Finding]:
        """All findings, with the severity of their causes, in the order of the trace."""
        found = []
        for pending in self._pending:
            severity = self._severity(pending)
            if severity is not None:
                cost = self._with_time(pending.finding.cost)
                cause = ":".join(str(part) for part in pending.key)
                found.append(msgspec.structs.replace(pending.finding, severity=severity, cost=cost, cause=cause))
        found.sort(key=lambda f: (f.location.file, f.location.request or 0, f.pair or (-1, -1), f.rule))
        return found

    def _with_time(self, cost: Cost) -> Cost:
        if not self._prefill_rate:
            return cost
        return msgspec.structs.replace(cost, milliseconds=1000.0 * cost.tokens / self._prefill_rate)

    def _severity(self, pending: _Pending) -> Severity | None:
        loss = self._losses[pending.key]
        severity = judge(loss, self._recurrence[pending.key], self._thresholds)
        tiny = severity is Severity.INFO and loss.worst_tokens < self._tiny_tokens
        if tiny and pending.verdict.needs_loss:
            return None
        verdict = pending.verdict
        if verdict.cap is not None:
            severity = min(severity, verdict.cap)
        if verdict.floor is not None:
            severity = max(severity, verdict.floor)
        return severity if pending.cap is None else min(severity, pending.cap)
