"""Jinja templates and prompt files by patterns: placeholders, clocks, random values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..findings import Severity
from . import ir
from .verdicts import CodeHit

_TAG = re.compile(r"\{[{%]-?\s*(.*?)\s*-?[%}]\}|\$\{\s*([\w.]+)\s*\}|(?<!\{)\{([A-Za-z_][\w.]*)\}(?!\})", re.DOTALL)
_CHAT = re.compile(r"add_generation_prompt|\bmessages\b|bos_token|eos_token")
_CLOCK_CALL = re.compile(r"\bstrftime_now\s*\(|\bnow\s*\(|\butcnow\s*\(|\{%-?\s*now\b|\bcurrent_time\b|\btimestamp\b|\bnow\b(?!\w)", re.IGNORECASE)
_NAMES: tuple[tuple[re.Pattern[str], str, Severity, str], ...] = (
    (re.compile(r"^(?:.*[._])?(?:now|time|current_?time|time_?now|timestamp|datetime|current_?date_?time|utc_?now|clock|iso_?time)$", re.I), "PL101", Severity.ERROR, "a clock value"),
    (re.compile(r"^(?:.*[._])?(?:date|today|current_?date|todays?_?date|date_?string|day|weekday)$", re.I), "PL102", Severity.WARNING, "a date"),
    (re.compile(r"^(?:.*[._])?(?:uuid|guid|nonce|request_?id|trace_?id|session_?id|run_?id|random_?id|ulid)$", re.I), "PL103", Severity.ERROR, "an id"),
    (re.compile(r"^(?:.*[._])?(?:tokens?_(?:used|left)|turn(?:_?number)?|budget|remaining|step(?:_?number)?|cost|usage|tokens_?remaining)$", re.I), "PL105", Severity.WARNING, "a counter"),
    (re.compile(r"^(?:.*[._])?(?:cwd|git_?status|git_?branch|branch|file_?tree|directory_?tree|working_?dir(?:ectory)?|open_?files|repo_?map|diagnostics)$", re.I), "PL106", Severity.WARNING, "the environment"),
    (re.compile(r"^(?:.*[._])?(?:few_?shot\w*|examples?|demos?|shots)$", re.I), "", Severity.INFO, ""),
    (re.compile(r"^(?:.*[._])?(?:memor(?:y|ies)|recalled\w*|user_?facts|long_?term_?memory)$", re.I), "PL303", Severity.WARNING, "memories"),
    (re.compile(r"^(?:.*[._])?(?:context|documents?|docs|chunks?|passages?|sources?|search_?results?|retrieved\w*|snippets)$", re.I), "PL302", Severity.WARNING, "retrieved text"),
    (re.compile(r"^(?:user|customer|tenant|account|member|client)(?:[._]\w+)?$|^(?:user|customer|tenant)_?\w+$", re.I), "PL301", Severity.WARNING, "a user's data"),
)  # fmt: skip
_SAMPLING = re.compile(r"\|\s*(?:random|shuffle|sample)\b|\b(?:random|shuffle)\s*\(")
_LEAST_STATIC = 1000
_LARGE_STATIC = 4000


def analyse_jinja(text: str) -> list[CodeHit]:
    """Hits of a Jinja template; chat templates are asked for clocks only."""
    if _CHAT.search(text):
        return [
            CodeHit("PL109", Severity.WARNING, "the chat template prints a clock value", _node(text, m.start()))
            for m in re.finditer(r"\bstrftime_now\s*\(|\bdatetime\.now\b", text)
        ]
    return _once(_jinja_hits(text))


def _jinja_hits(text: str) -> Iterator[CodeHit]:
    for match in _TAG.finditer(text):
        inner = match.group(1) or ""
        if _SAMPLING.search(inner):
            yield CodeHit("PL108", Severity.ERROR, "a random choice reaches a prompt", _node(text, match.start()))
        if re.search(r"\bnow\s*\(|\butcnow\s*\(|^now\b|strftime_now", inner):
            rule = "PL101" if re.search(r"%-?[HIMSTRXc]|[Hh]{1,2}:|isoformat|^now\(\)$|timestamp", inner) or "%" not in inner else "PL102"
            severity = Severity.ERROR if rule == "PL101" else Severity.WARNING
            yield CodeHit(rule, severity, "a clock value reaches a prompt", _node(text, match.start()))
        elif re.search(r"\buuid\w*\s*\(", inner):
            yield CodeHit("PL103", Severity.ERROR, "a random id reaches a prompt", _node(text, match.start()))
    yield from _placeholder_hits(text)


def analyse_prompt_file(text: str) -> list[CodeHit]:
    """Hits of a prompt file with placeholders."""
    return _once(_placeholder_hits(text))


def _placeholder_hits(text: str) -> Iterator[CodeHit]:
    static = _static_lengths(text)
    for match in _TAG.finditer(text):
        name = _placeholder_name(match)
        if not name:
            continue
        after = static[-1][1] - next((total for at, total in reversed(static) if at <= match.start()), 0)
        yield from _named(name, after, text, match.start())


def _placeholder_name(match: re.Match[str]) -> str | None:
    if match.group(0).startswith("{%"):
        return None
    inner = match.group(1) or match.group(2) or match.group(3) or ""
    name = re.split(r"[|(\s]", inner.strip(), maxsplit=1)[0]
    return name if re.fullmatch(r"[A-Za-z_][\w.]*", name) else None


def _static_lengths(text: str) -> list[tuple[int, int]]:
    """(position, static characters up to it) at each placeholder."""
    found, total, position = [(0, 0)], 0, 0
    for match in _TAG.finditer(text):
        total += match.start() - position
        found.append((match.start(), total))
        position = match.end()
    found.append((len(text), total + len(text) - position))
    return found


def _named(name: str, after: int, text: str, at: int) -> Iterator[CodeHit]:
    for pattern, rule, severity, what in _NAMES:
        if pattern.match(name):
            if rule and (after >= _LEAST_STATIC or rule in ("PL101", "PL103")) and after > 0:
                yield CodeHit(rule, severity, f"{what} stands before {after} static characters", _node(text, at))
            return
    if after >= _LARGE_STATIC:
        message = f"'{name}' stands before {after} static characters"
        yield CodeHit("PL304", Severity.WARNING, message, _node(text, at))


def _once(hits: Iterator[CodeHit]) -> list[CodeHit]:
    found: dict[tuple[str, int], CodeHit] = {}
    for hit in hits:
        found.setdefault((hit.rule, hit.node.line), hit)
    first_static = next((h for h in found.values() if h.rule == "PL304"), None)
    kept = [h for h in found.values() if h.rule != "PL304" or h is first_static]
    return sorted(kept, key=lambda hit: (hit.node.line, hit.rule))


def _node(text: str, at: int) -> ir.Node:
    end = text.find("\n", at)
    return ir.Node(text.count("\n", 0, at) + 1, at, len(text) if end < 0 else end)
