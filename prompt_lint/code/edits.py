"""Edits that repair a hit in code: sorted(), sort_keys, add_special_tokens."""

from __future__ import annotations

from ..findings import Edit
from . import ir
from .verdicts import CodeHit

_ROUND = ("tuple", "enumerate", "iter")  # what is in them is sorted
_UNSORTABLE = ("walk", "scandir", "as_completed", "readdir")  # triples, entries, futures, promises


def python_edits(hit: CodeHit, text: str) -> tuple[Edit, ...]:
    """The edits of a rule that has a mechanical repair in Python; nothing for all others."""
    node = hit.origin or hit.node
    if hit.rule in ("PL203", "PL205") and node.end > node.start and not isinstance(node, ir.Formatted):
        return _sorted(node, text[node.start : node.end])
    if hit.rule == "PL202" and isinstance(node, ir.Call) and text[node.start : node.end].startswith("json.dumps("):
        return _argument(node, text, "sort_keys=True", safe=False)
    if hit.rule == "PL705" and isinstance(hit.node, ir.Call):
        return _argument(hit.node, text, "add_special_tokens=False", safe=True)
    return ()


def javascript_edits(hit: CodeHit, text: str) -> tuple[Edit, ...]:
    """The edits for JavaScript: names that were read from a folder at once are sorted."""
    node = hit.origin or hit.node
    reads = isinstance(node, ir.Call) and ir.dotted(node).endswith("readdirSync") and len(node.args) == 1
    if hit.rule == "PL205" and reads and text[node.start : node.end].endswith(")"):
        return (Edit(node.end, node.end, ".sort()", safe=True),)
    return ()


def _argument(call: ir.Call, text: str, argument: str, *, safe: bool) -> tuple[Edit, ...]:
    """One more keyword at the end of a call, which may end with a comma or over several lines."""
    inside = text[call.start : call.end - 1].rstrip()
    if "#" in inside[max((arg.end for arg in call.args), default=call.start) - call.start :]:
        return ()  # behind a comment nothing can be added
    at = call.start + len(inside)
    separator = " " if inside.endswith(",") else "" if inside.endswith("(") else ", "
    return (Edit(at, at, separator + argument, safe=safe),)


def _sorted(node: ir.Node, source: str) -> tuple[Edit, ...]:
    name = ir.dotted(node).rsplit(".", 1)[-1] if isinstance(node, ir.Call) else ""
    if "\n" in source or source.startswith("for ") or name in _UNSORTABLE:
        return ()
    if name in ("list", *_ROUND) and not source.startswith(f"{name}("):
        return ()
    if name == "list":
        return (Edit(node.start, node.start + len(name), "sorted", safe=True),)
    if name in _ROUND and isinstance(node, ir.Call) and len(node.args) == 1:
        first = node.args[0]
        return _around(first.start, first.end)
    return () if name in _ROUND else _around(node.start, node.end)


def _around(start: int, end: int) -> tuple[Edit, ...]:
    return (Edit(start, start, "sorted(", safe=True), Edit(end, end, ")", safe=True))
