"""Where two prompts part: the first leaf, and the character in it, that differ."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from .prompt import Leaf, Prompt, Section, Unit
from .request import ApiShape


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two prompts. `common_chars` counts leaf characters that both share."""

    path: str
    char: int
    common_chars: int
    was: Leaf | None
    now: Leaf | None
    unit: int  # index of the unit in both prompts
    now_path: str


def common_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the longest common prefix, by bisection on slices (memory compares)."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def first_difference(was: Sequence[int], now: Sequence[int]) -> int | None:
    """Index of the first token that differs; None when one begins with the other. Both are of the same type."""
    at = common_length(was, now)
    return at if at < min(len(was), len(now)) else None


def common_units(a: Prompt, b: Prompt) -> int:
    """How many leading units are the same bytes in both."""
    pairs = zip(a.units, b.units, strict=False)
    return sum(1 for _ in takewhile(lambda p: p[0].digest == p[1].digest and p[0].section is p[1].section, pairs))


def first_divergence(previous: Prompt, current: Prompt) -> Divergence | None:
    """The first difference; None when one prompt is a prefix of the other."""
    if previous.request.shape is ApiShape.TEXT and current.request.shape is ApiShape.TEXT:
        return _text_divergence(previous, current)
    unit = common_units(previous, current)
    if unit == len(previous.units) or unit == len(current.units):
        return None
    before = previous.ends[unit - 1] if unit else 0
    was, now = previous.units[unit], current.units[unit]
    return _unit_divergence(was, now, unit, before)


def common_chars(previous: Prompt, current: Prompt, units: int) -> int:
    """Characters that two prompts share, given that their first `units` units are equal."""
    if previous.request.shape is ApiShape.TEXT and current.request.shape is ApiShape.TEXT:
        place = _text_divergence(previous, current)
        return place.common_chars if place else min(previous.total_chars, current.total_chars)
    before = previous.ends[units - 1] if units else 0
    if units >= len(previous.units) or units >= len(current.units):
        return before
    was, now = previous.units[units], current.units[units]
    if was.digest == now.digest:
        return before + was.size
    return _unit_divergence(was, now, units, before).common_chars


def _text_divergence(previous: Prompt, current: Prompt) -> Divergence | None:
    (was,), (now,) = previous.all_leaves(), current.all_leaves()
    char = common_length(was.text, now.text)
    if char in (len(was.text), len(now.text)):
        return None
    return Divergence(was.path, char, char, was, now, bisect_right(previous.ends, char), now.path)


def _unit_divergence(was_unit: Unit, now_unit: Unit, unit: int, before: int) -> Divergence:
    was_leaves, now_leaves = was_unit.leaves(), now_unit.leaves()
    for was, now in zip(was_leaves, now_leaves, strict=False):
        if was == now:
            before += len(was.text)
            continue
        if was.path == now.path:
            char = common_length(was.text, now.text)
            return Divergence(was.path, char, before + char, was, now, unit, now.path)
        return _path_divergence(was, now, unit, before)
    extra = (was_leaves + now_leaves[len(was_leaves) :])[min(len(was_leaves), len(now_leaves)) :]
    path = extra[0].path if extra else was_unit.path
    longer_was = len(was_leaves) > len(now_leaves)
    leaf = extra[0] if extra else None
    return Divergence(path, 0, before, leaf if longer_was else None, None if longer_was else leaf, unit, path)


def _path_divergence(was: Leaf, now: Leaf, unit: int, before: int) -> Divergence:
    """Different keys: the place is the first dotted component that differs, as it was."""
    was_parts, now_parts = was.path.split("."), now.path.split(".")
    same = sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(was_parts, now_parts, strict=False)))
    was_key, now_key = ("".join(parts[same : same + 1]) for parts in (was_parts, now_parts))
    if same and was_key.split("[")[0] != now_key.split("[")[0]:
        was_key, now_key = was_key.split("[")[0], now_key.split("[")[0]
    path, now_path = (".".join([*was_parts[:same], key]) for key in (was_key, now_key))
    return Divergence(path, 0, before, was, now, unit, now_path)


def canonical(value: Any) -> Any:
    """A value with its keys in order, for comparing JSON by meaning."""
    if isinstance(value, dict):
        return {k: canonical(value[k]) for k in sorted(value)}
    if isinstance(value, list):
        return [canonical(v) for v in value]
    return value


def section_at(prompt: Prompt, unit: int) -> Section:
    """The section of the unit at an index; messages when past the end."""
    return prompt.units[unit].section if unit < len(prompt.units) else Section.MESSAGES
