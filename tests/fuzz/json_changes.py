"""Changes of JSON texts that stay JSON: fields of other types, extreme numbers, missing, doubled and deep parts."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "\u0000", "\ud800", "é🙂", "a" * 300, "2026-11-29T00:00:00Z", "9999-99-99T99:99:99Z", "%s{}[]",
    [], [None], [[]], {}, {"a": None}, {"": {}}, {"type": 5}, {"content": {"b": [1]}}, {"type": "text", "text": 1},
    [{"role": "user", "content": "x"}], [0, "a", None],
)  # fmt: skip


_DEEP = re.compile(r'"@deep (\d+)@"')
_DEPTHS = (30, 200, 500, 900, 960, 985, 995, 1005, 1500, 30_000)


def changed(content: bytes, rng: random.Random) -> bytes:
    """One value of a JSON text, or of a line of JSON lines, put out of order; other bytes come back as they are."""
    try:
        return _encode(_somewhere(json.loads(content), rng))
    except (ValueError, RecursionError):
        pass
    lines = content.split(b"\n")
    places = [index for index, line in enumerate(lines) if line.strip()]
    if not places:
        return content
    at = rng.choice(places)
    try:
        lines[at] = _encode(_somewhere(json.loads(lines[at]), rng))
    except (ValueError, RecursionError):
        return content
    if rng.random() < 0.1:
        lines.insert(at, rng.choice(lines))
    return b"\n".join(lines)


def _encode(value: Any) -> bytes:
    return _DEEP.sub(lambda found: _nested(int(found[1])), json.dumps(value)).encode()


def _nested(depth: int) -> str:
    """A value that no recursive writer could have made: objects and lists around each other."""
    return ('{"a":[' * (depth // 2 + 1)) + "1" + "]}" * (depth // 2 + 1)


def _somewhere(value: Any, rng: random.Random) -> Any:
    """``value`` with one or more of its parts changed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        _collect(value, places)
        if not places:
            return copy.deepcopy(rng.choice(JUNK))
        holder, key = rng.choice(places)
        _change(holder, key, rng, places)
    return value


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, part in items:
        places.append((value, key))
        _collect(part, places)


def _change(holder: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    part = holder[key]
    match rng.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(part)] * rng.choice((1, 2, 40))
        case 2 if isinstance(holder, dict):
            holder[rng.choice(("x", "", "type", "id", "content", "stream", str(key) + "x"))] = holder.pop(key)
        case 3:
            other, other_key = rng.choice(places)
            holder[key] = copy.deepcopy(other[other_key])
        case 4 if isinstance(part, int | float) and not isinstance(part, bool):
            holder[key] = rng.choice(
                (-part, part + 1, part * 1000, part / 3, 2**31 + int(part == part and abs(part) < 1e9))
            )
        case 5 if isinstance(part, str):
            at = rng.randrange(len(part) + 1)
            holder[key] = part[:at] + rng.choice(("", "\u2028", "}", '"', "<|im_end|>", "\x00", "é", part)) + part[at:]
        case 6:
            holder[key] = f"@deep {rng.choice(_DEPTHS)}@"
        case 7:
            for _ in range(rng.choice((1, 5, 200))):
                part = [part] if rng.random() < 0.5 else {"a": part}
            holder[key] = part
        case _:
            holder[key] = copy.deepcopy(rng.choice(JUNK))
