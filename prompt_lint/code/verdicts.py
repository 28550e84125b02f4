"""From an origin that reached a prompt to a rule and a severity."""

from __future__ import annotations

from dataclasses import dataclass

from ..findings import Severity
from . import ir
from .sinks import Sink
from .sources import draws_several
from .values import ORDER_KINDS, Kind, Mark, Value

_LARGE = 400
_SOME = 120


@dataclass(frozen=True, slots=True)
class CodeHit:
    """One place in code that breaks the cache."""

    rule: str
    severity: Severity
    message: str
    node: ir.Node
    origin: ir.Node | None = None
    passed: frozenset[int] = frozenset()  # the starts of places that the value had come through


_RULES: dict[Kind, tuple[str, Severity]] = {
    Kind.CLOCK: ("PL101", Severity.ERROR),
    Kind.DATE: ("PL102", Severity.WARNING),
    Kind.RANDOM_ID: ("PL103", Severity.ERROR),
    Kind.ADDRESS: ("PL103", Severity.ERROR),
    Kind.SAMPLED: ("PL108", Severity.ERROR),
    Kind.UNORDERED: ("PL203", Severity.ERROR),
    Kind.LISTING: ("PL205", Severity.WARNING),
    Kind.COMPLETION: ("PL204", Severity.WARNING),
    Kind.ENVIRONMENT: ("PL106", Severity.ERROR),
    Kind.FIXED_ENVIRONMENT: ("PL106", Severity.INFO),
    Kind.USER: ("PL301", Severity.WARNING),
    Kind.RETRIEVED: ("PL302", Severity.ERROR),
    Kind.MEMORY: ("PL303", Severity.ERROR),
    Kind.SIGNED_URL: ("PL107", Severity.WARNING),
    Kind.JSON_DUMP: ("PL202", Severity.WARNING),
    Kind.WINDOW: ("PL402", Severity.ERROR),
    Kind.RENDERED: ("PL705", Severity.ERROR),
}
_IN_SYSTEM = frozenset(_RULES) - {Kind.JSON_DUMP, Kind.WINDOW, Kind.RENDERED, Kind.USER}
_IN_TOOLS = _IN_SYSTEM - {Kind.RETRIEVED, Kind.MEMORY, Kind.SIGNED_URL}
_BEFORE_STATIC = frozenset({Kind.CLOCK, Kind.DATE, Kind.RANDOM_ID, Kind.SAMPLED, Kind.ENVIRONMENT})
_ALLOWED: dict[Sink, frozenset[Kind]] = {
    Sink.SYSTEM: _IN_SYSTEM,
    Sink.TOOLS: _IN_TOOLS,
    Sink.TOOL_LIST: ORDER_KINDS | {Kind.SAMPLED},
    Sink.USER_TURN: frozenset(),
    Sink.ANSWER: frozenset({Kind.SAMPLED}),
    Sink.MESSAGES: frozenset({Kind.WINDOW}),
    Sink.ARGUMENTS: frozenset({Kind.JSON_DUMP}),
    Sink.CACHE_KEY: frozenset(),
    Sink.IMAGE: frozenset({Kind.SIGNED_URL}),
}


_PLURAL = frozenset({Kind.COMPLETION, Kind.MEMORY})


def judge_mark(mark: Mark, value: Value, sink: Sink) -> CodeHit | None:
    """A hit when this origin matters in this part of a prompt."""
    kind = mark.kind
    if sink is Sink.CACHE_KEY:
        return _cache_key(mark)
    allowed = kind in _ALLOWED[sink]
    if sink is Sink.USER_TURN and kind in _BEFORE_STATIC:
        allowed = value.static_after(mark) >= (_SOME if kind is Kind.SAMPLED else _LARGE)
    if sink is Sink.ANSWER:
        allowed = allowed and draws_several(mark.origin)
    if kind is Kind.USER and sink is Sink.SYSTEM:
        allowed = value.static_after(mark) >= _LARGE
    if not allowed:
        return None
    rule, severity = ("PL201", Severity.ERROR) if sink is Sink.TOOL_LIST and kind is Kind.SAMPLED else _RULES[kind]
    return CodeHit(rule, severity, _says(kind, sink), mark.site, mark.origin, mark.passed)


def _says(kind: Kind, sink: Sink) -> str:
    if kind is Kind.WINDOW:
        return f"only {kind.value} are sent"
    return f"{kind.value} {'reach' if kind in _PLURAL else 'reaches'} {sink.value}"


def _cache_key(mark: Mark) -> CodeHit | None:
    if mark.kind in (Kind.RANDOM_ID, Kind.CLOCK):
        return CodeHit(
            "PL505", Severity.WARNING, f"{mark.kind.value} is used as the cache key", mark.origin, mark.origin
        )
    return None
