"""PL606: markers written out in one call that a provider refuses: too many, or lifetimes in the wrong order."""

from __future__ import annotations

from collections.abc import Iterator

from . import ir

_MOST_MARKERS = 4
_IN_PROMPT_ORDER = ("tools", "system", "messages")


def refused_markers(call: ir.Call) -> str | None:
    """What is wrong with the markers of a call, or None."""
    lives = [ttl for key in _IN_PROMPT_ORDER if (node := call.kwargs.get(key)) for ttl in _lifetimes(node)]
    if len(lives) > _MOST_MARKERS:
        return f"{len(lives)} cache markers, the provider takes {_MOST_MARKERS}"
    if "1h" in lives and "5m" in lives[: len(lives) - lives[::-1].index("1h") - 1]:
        return "a marker of 1 h stands after one of 5 minutes"
    return None


def _lifetimes(node: ir.Node) -> Iterator[str]:
    """The lifetime of each marker that is written out in an expression, in its order."""
    if isinstance(node, ir.DictExpr):
        for _, value in node.items:
            yield from _lifetimes(value)
        marker = node.get("cache_control")
        if marker is not None:
            ttl = marker.get("ttl") if isinstance(marker, ir.DictExpr) else None
            yield ttl.text if isinstance(ttl, ir.Const) and ttl.text else "5m"
    elif isinstance(node, ir.Seq):
        for item in node.items:
            yield from _lifetimes(item)
    elif isinstance(node, ir.Sum):
        for part in (node.left, node.right):
            yield from _lifetimes(part)
    elif isinstance(node, ir.Group):
        for part in node.parts:
            yield from _lifetimes(part)
