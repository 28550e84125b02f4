"""PL202 and PL205 to PL210: the same content, serialised or ordered in another way."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, ClassVar

from ..breaks import Break, Scope
from ..divergence import canonical
from ..findings import Severity
from ..prompt import Unit, texts_of, without_markers
from ..request import ApiShape
from ..severity import Recurrence
from ..text_change import (
    TextChange,
    differs_in_unicode_form_only,
    differs_in_white_space_only,
    embedded_json,
    is_reordered,
    key_order,
)
from .base import Verdict

_UNSET = object()


def _json_pair(brk: Break) -> tuple[Any, Any] | None:
    """The JSON values at the place: the units themselves, or JSON inside the text that parted."""
    if brk.text is not None:
        was, now = embedded_json(brk.text.was, brk.text.position), embedded_json(brk.text.now, brk.text.position)
        if was and now and was[0] == now[0]:
            return was[1], now[1]
        whole = _parsed(brk.text.was), _parsed(brk.text.now)
        return None if _UNSET in (whole[0], whole[1]) else whole
    if brk.was_unit is None or brk.now_unit is None:
        return None
    return without_markers(brk.was_unit.value), without_markers(brk.now_unit.value)


def _parsed(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return _UNSET
    try:
        return json.loads(text)
    except ValueError:
        return _UNSET


class JsonKeyOrder:
    """Equal JSON with its keys in another order."""

    code: ClassVar[str] = "PL202"

    def judge(self, brk: Break) -> Verdict | None:
        pair = _json_pair(brk)
        if not pair or canonical(pair[0]) != canonical(pair[1]) or key_order(pair[0]) == key_order(pair[1]):
            return None
        return Verdict(self.code, "equal JSON is sent with its keys in another order", needs_loss=False)


class ReserialisedJson:
    """Equal JSON, keys in the same order, written in another way."""

    code: ClassVar[str] = "PL206"

    def judge(self, brk: Break) -> Verdict | None:
        pair = _json_pair(brk)
        if (
            brk.text is None
            or not pair
            or canonical(pair[0]) != canonical(pair[1])
            or key_order(pair[0]) != key_order(pair[1])
        ):
            return None
        if _only_outside_changed(brk.text):
            return None
        return Verdict(self.code, "equal JSON is written with other separators, escapes or numbers", needs_loss=False)


def _only_outside_changed(change: TextChange) -> bool:
    """The JSON is equal byte for byte and something around it changed."""
    was, now = embedded_json(change.was, change.position), embedded_json(change.now, change.position)
    return bool(was and now) and json.dumps(was) == json.dumps(now) and change.was == change.now


class WhitespaceDrift:
    """Only white space differs."""

    code: ClassVar[str] = "PL207"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text and _blank_at_place(brk.text) and _whole(brk.text, differs_in_white_space_only):
            was, now = brk.text.hunk
            return Verdict(self.code, "only white space differs", was=was.text, now=now.text, needs_loss=False)
        return None


def _blank_at_place(change: TextChange) -> bool:
    """White space, or an end, stands at the place in one of the two versions."""
    at = change.position
    return not change.was[at : at + 1].strip() or not change.now[at : at + 1].strip()


class UnicodeDrift:
    """Only the Unicode form differs."""

    code: ClassVar[str] = "PL208"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text and _whole(brk.text, differs_in_unicode_form_only):
            cap = Severity.WARNING if brk.scope is Scope.FLEET else None
            was, now = brk.text.block
            return Verdict(self.code, "only the Unicode form differs", cap=cap, was=was, now=now, needs_loss=False)
        return None


def _whole(change: TextChange, equal: Any) -> bool:
    return bool(equal(change.was, change.now) or equal(*change.block))


class ListingOrder:
    """The same lines in another order."""

    code: ClassVar[str] = "PL205"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.text is None:
            return None
        for was, now in dict.fromkeys((brk.text.region, brk.text.block)):
            if is_reordered(was, now):
                return Verdict(self.code, "the same list is printed in another order", was=was, now=now)
        return None


_ALIKE = (ApiShape.ANTHROPIC, ApiShape.CONVERSE)  # to these a string is one text block


class ContentShapeDrift:
    """The same text in another JSON shape."""

    code: ClassVar[str] = "PL209"

    def judge(self, brk: Break) -> Verdict | None:
        was, now = brk.was_unit, brk.now_unit
        if was is None or now is None or was.role != now.role or brk.text is not None:
            return None
        if _flat(was) == _flat(now) and _other_leaves(was) == _other_leaves(now):
            message = "a message has the same text in another JSON shape"
            alike = brk.current.request.shape in _ALIKE
            return Verdict(
                self.code, message, Recurrence.NOW_AND_THEN, cap=Severity.INFO if alike else None, needs_loss=False
            )
        return None


def _flat(unit: Unit) -> str:
    return "".join(texts_of(without_markers(unit.value))).strip()


_SHAPE_KEYS = re.compile(
    r"\.(?:type|role|text|content|name|annotations|refusal|status|cache_control)(?:\[\d+\])?$|\.(?:content|parts)\[\d+\]$|^[\w.]+\[\d+\]$"
)


def _other_leaves(unit: Unit) -> Counter[str]:
    """Scalars that are neither text nor the shape around it; nulls and empties count as missing."""
    return Counter(
        leaf.text for leaf in unit.leaves() if not _SHAPE_KEYS.search(leaf.path) and leaf.text not in ("null", "")
    )


_ID_KEY = re.compile(
    r"(?:^|[._])(?:id|ids|uuid|call_id|callId|tool_call_id|tool_use_id|toolUseId|item_id|message_id|rid)(?:\[\d+\])?$"
)


class RegeneratedId:
    """Only ids of calls, messages or items differ, and calls and results still pair up."""

    code: ClassVar[str] = "PL210"

    def judge(self, brk: Break) -> Verdict | None:
        place = brk.place
        if not _ID_KEY.search(place.path) or brk.was_unit is None or brk.now_unit is None:
            return None
        if _without_ids(brk.was_unit) != _without_ids(brk.now_unit):
            return None
        was, now = (leaf.text if leaf else None for leaf in (place.was, place.now))
        return Verdict(self.code, "an id in replayed history is generated again", was=was, now=now)


def _without_ids(unit: Unit) -> list[tuple[str, str]]:
    return [(leaf.path, leaf.text) for leaf in unit.leaves() if not _ID_KEY.search(leaf.path)]


class ParallelResultOrder:
    """Results of parallel calls in another order."""

    code: ClassVar[str] = "PL204"

    def judge(self, brk: Break) -> Verdict | None:
        was, now = _result_run(brk.was_tail), _result_run(brk.now_tail)
        if len(was) >= 2 and was != now and Counter(was) == Counter(now):
            return Verdict(self.code, "results of parallel calls stand in another order")
        inside = _results_inside(brk.was_unit), _results_inside(brk.now_unit)
        if len(inside[0]) >= 2 and inside[0] != inside[1] and Counter(inside[0]) == Counter(inside[1]):
            return Verdict(self.code, "results of parallel calls stand in another order")
        return None


def _result_run(units: list[Unit]) -> list[int]:
    """Digests of the tool results that follow each other from the start of some units."""
    run = []
    for unit in units:
        if unit.role not in (
            "tool",
            "function",
            "function_call_output",
            "tool_result",
            "custom_tool_call_output",
            "function_response",
        ):
            break
        run.append(unit.digest)
    return run


_RESULT_TYPES = ("tool_result", "function_call_output")


def _results_inside(unit: Unit | None) -> list[str]:
    """The results inside one message (Anthropic, Converse and Gemini put them into one)."""
    if unit is None or not isinstance(unit.value, dict):
        return []
    parts = unit.value.get("content") or unit.value.get("parts")
    if not isinstance(parts, list):
        return []
    return [
        json.dumps(without_markers(p))
        for p in parts
        if isinstance(p, dict) and (p.get("type") in _RESULT_TYPES or "toolResult" in p or "functionResponse" in p)
    ]
