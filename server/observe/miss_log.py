"""The latest explained misses, and how many there were of each rule."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import msgspec

from ...prompt_lint.findings import Finding, redacted
from ...sessions.manager.turn_events import Miss
from ..engine.messages import MissedTokens, TurnUsage

MAX_MISSES = 512
SHOWN_CHARS = 80
LEAST_TOKENS = 16  # a miss of fewer is nobody's concern
_MORE_ROOM = "give the KV pool or a lower tier more room, or pin what must stay"
_CAUSES = {  # of MissedTokens: rule, name, explanation, remedy
    "evicted": ("PL803", "evicted", "its KV was given up for want of room", _MORE_ROOM),
    "expired": ("PL801", "ttl-expired", "the time for which its KV was kept had passed", "keep it longer, with a hint"),
    "other_engine": (
        "PL804",
        "routed-away",
        "another server computed it, or this one before its engine was restarted",
        "keep the disk tier on, and send a session to the server that has it",
    ),
    "cheaper_to_compute": (
        "PL803",
        "evicted",
        "it was in a slower tier, and computing it was predicted to be faster",
        _MORE_ROOM,
    ),
    "load_failed": (
        "PL803",
        "evicted",
        "it came damaged or late from its tier",
        "see the tier's errors in /v1/cache/tiers",
    ),
    "no_room": ("PL803", "evicted", "the KV pool had no block to spare", _MORE_ROOM),
}
_FAMILIES = {
    "1": "volatile_prefix",
    "2": "drift",
    "3": "order",
    "4": "edited_history",
    "5": "parameters",
    "7": "template",
    "8": "serving",
}


class LoggedMiss(msgspec.Struct, frozen=True, kw_only=True):
    """A miss, and the turn that had it. ``at``: seconds since the epoch."""

    at: float
    tenant: str
    session: str
    turn_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    reusable_tokens: int
    missed: MissedTokens
    miss: Miss

    def to_json(self) -> dict[str, Any]:
        """One flat object, as ``GET /v1/cache/misses`` lists it."""
        fields = msgspec.to_builtins(self)
        return {**{key: fields[key] for key in self.__struct_fields__ if key != "miss"}, **fields["miss"]}


class MissLog:
    """Alone keeps the misses. One asyncio loop uses it."""

    def __init__(self, most: int = MAX_MISSES) -> None:
        self._latest: deque[LoggedMiss] = deque(maxlen=most)
        self.by_rule: Counter[str] = Counter()
        self.tokens_by_family: Counter[str] = Counter()  # lost, by kind of cause

    def add(self, miss: LoggedMiss) -> None:
        """Keep a miss, and count it."""
        self._latest.append(miss)
        self.by_rule[miss.miss.rule] += 1
        self.tokens_by_family[family_of(miss.miss.rule)] += miss.miss.lost_tokens

    def latest(self, most: int, tenant: str | None = None, session: str | None = None) -> list[LoggedMiss]:
        """The latest first; of one tenant or session alone where one is named."""
        found = (
            miss for miss in reversed(self._latest) if tenant in (None, miss.tenant) and session in (None, miss.session)
        )
        return [miss for _, miss in zip(range(most), found, strict=False)]


def family_of(rule: str) -> str:
    """The kind of cause that a rule is of."""
    return _FAMILIES.get(rule[2:3], "other")


def miss_of_finding(finding: Finding, usage: TurnUsage, *, show_text: bool) -> Miss:
    """What prompt-lint found, with what the turn really computed. The text is shown only if that is configured."""
    new = usage.prompt_tokens - usage.reusable_tokens
    diverged = usage.reusable_tokens < usage.prompt_tokens - 1
    return Miss(
        rule=finding.rule,
        name=finding.name,
        explanation=finding.message if show_text else finding.name.replace("-", " "),
        remedy=finding.fix,
        lost_tokens=min(max(finding.cost.tokens, 0), new) or new,
        first_divergent_token=usage.reusable_tokens if diverged else None,
        path=finding.location.path,
        char=finding.location.char,
        was=_shown(finding.was, show_text=show_text),
        now=_shown(finding.now, show_text=show_text),
    )


def miss_of_cause(usage: TurnUsage) -> Miss | None:
    """Why tokens were computed that had been computed before; None when few were."""
    missed = usage.missed
    if missed.total < LEAST_TOKENS:
        return None
    cause = max(_CAUSES, key=lambda name: int(getattr(missed, name)))
    rule, name, explanation, remedy = _CAUSES[cause]
    return Miss(rule=rule, name=name, explanation=explanation, remedy=remedy, lost_tokens=missed.total)


def _shown(text: str | None, *, show_text: bool) -> str | None:
    if text is None:
        return None
    return (text if show_text else redacted(text))[:SHOWN_CHARS]
