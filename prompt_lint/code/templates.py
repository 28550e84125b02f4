"""Jinja templates and prompt files by patterns: placeholders, clocks, random values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..findings import Severity
from . import ir
from .verdicts import CodeHit

_TAG = re.compile(r"\{[{%]-?\s*(.*?)\s*-?[%}]\}|\$\{\s*([\w.]+)\s*\}|(?<!\{)\{([A-Za-z_][\w.]*)\}(?!\})", re.DOTALL)
_CHAT = re.compile(r"add_generation_prompt|\bmessages\b|bos_token|eos_token")
_CLOCK_CALL = re.compile(
    r"\bstrftime_now\s*\(|\bnow\s*\(|\butcnow\s*\(|\{%-?\s*now\b|\bcurrent_time\b|\btimestamp\b|\bnow\b(?!\w)",
    re.IGNORECASE,
)


def _named_like(words: str, *, whole: str = "") -> re.Pattern[str]:
    """Names that end in one of some words, with any prefix: `session.current_time`."""
    alternatives = "|".join(words.split())
    return re.compile(rf"^(?:.*[._])?(?:{alternatives})$" + (f"|{whole}" if whole else ""), re.IGNORECASE)


_TIMES = "now time current_?time time_?now timestamp datetime current_?date_?time utc_?now clock iso_?time"
_IDS = "uuid guid nonce request_?id trace_?id session_?id run_?id random_?id ulid"
_COUNTERS = "tokens?_(?:used|left|remaining) turn(?:_?number)? budget remaining step(?:_?number)? cost usage"
_ENVIRONMENT = (
    "cwd git_?status git_?branch branch file_?tree directory_?tree working_?dir(?:ectory)? open_?files repo_?map "
    "diagnostics"
)
_RAW = re.compile(r"\{%-?\s*raw\s*-?%\}.*?\{%-?\s*endraw\s*-?%\}|\{#.*?#\}", re.DOTALL)
_RETRIEVED = "context documents? docs chunks? passages? sources? search_?results? retrieved\\w* snippets"
_USER = r"^(?:user|customer|tenant|account|member|client)(?:[._]\w+)?$|^(?:user|customer|tenant)_?\w+$"
_NAMES: tuple[tuple[re.Pattern[str], str, Severity, str], ...] = (
    (_named_like(_TIMES), "PL101", Severity.ERROR, "a clock value"),
    (_named_like("date today current_?date todays?_?date date_?string weekday"), "PL102", Severity.WARNING, "a date"),
    (_named_like(_IDS), "PL103", Severity.ERROR, "an id"),
    (_named_like(_COUNTERS), "PL105", Severity.WARNING, "a counter"),
    (_named_like(_ENVIRONMENT), "PL106", Severity.WARNING, "the environment"),
    (_named_like("few_?shot\\w* examples? demos? shots"), "", Severity.INFO, ""),
    (_named_like("memor(?:y|ies) recalled\\w* user_?facts long_?term_?memory"), "PL303", Severity.WARNING, "memories"),
    (_named_like(_RETRIEVED), "PL302", Severity.WARNING, "retrieved text"),
    (re.compile(_USER, re.IGNORECASE), "PL301", Severity.WARNING, "a user's data"),
)
_SAMPLING = re.compile(r"\|\s*(?:random|shuffle|sample)\b|\b(?:random|shuffle)\s*\(")
_LOOP = re.compile(r"\{%-?\s*for\s+([\w, ]+?)\s+in\b")
_LOOP_END = re.compile(r"\{%-?\s*endfor\b")
_VARIABLE = re.compile(r"([A-Za-z_][\w.]*)(?:\s*\||\s|$)")  # no call: that is looked at for what it calls
_LEAST_VOLATILE = 16
_LEAST_STATIC = 1000
_LARGE_STATIC = 4000


def analyse_jinja(text: str) -> list[CodeHit]:
    """Hits of a Jinja template; chat templates are asked for clocks only."""
    text = _RAW.sub(lambda found: re.sub(r"[{}]", " ", found.group()), text)  # printed as it stands, or not at all
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
            rule = (
                "PL101"
                if re.search(r"%-?[HIMSTRXc]|[Hh]{1,2}:|isoformat|^now\(\)$|timestamp", inner) or "%" not in inner
                else "PL102"
            )
            severity = Severity.ERROR if rule == "PL101" else Severity.WARNING
            yield CodeHit(rule, severity, "a clock value reaches a prompt", _node(text, match.start()))
        elif re.search(r"\buuid\w*\s*\(", inner):
            yield CodeHit("PL103", Severity.ERROR, "a random id reaches a prompt", _node(text, match.start()))
    yield from _placeholder_hits(text, jinja_only=True)


def analyse_prompt_file(text: str) -> list[CodeHit]:
    """Hits of a prompt file with placeholders."""
    return _once(_placeholder_hits(text))


def _placeholder_hits(text: str, *, jinja_only: bool = False) -> Iterator[CodeHit]:
    static = _static_lengths(text)
    looped = {name.strip() for names in _LOOP.findall(text) for name in names.split(",")}
    for match in _TAG.finditer(text):
        name = _placeholder_name(match)
        if not name or (jinja_only and not match.group(0).startswith("{{")):
            continue
        after = static[-1][1] - next((total for at, total in reversed(static) if at <= match.start()), 0)
        listed = name.split(".")[0] in looped or _inside_loop(text, match.start())
        for hit in _named(name, after, text, match.start()):
            if hit.rule != "PL304" or not listed:  # what a loop prints is a list, and mostly fixed
                yield hit


def _inside_loop(text: str, at: int) -> bool:
    return len(_LOOP.findall(text, 0, at)) > len(_LOOP_END.findall(text, 0, at))


def _placeholder_name(match: re.Match[str]) -> str | None:
    if match.group(0).startswith("{%"):
        return None
    inner = match.group(1) or match.group(2) or match.group(3) or ""
    found = _VARIABLE.match(inner.strip())
    return found.group(1) if found else None


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
            if rule and after >= (_LEAST_VOLATILE if rule in ("PL101", "PL103") else _LEAST_STATIC):
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
