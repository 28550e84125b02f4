"""Edits that repair a hit in code: sorted(), sort_keys, add_special_tokens."""

from __future__ import annotations

from ..findings import Edit
from . import ir
from .verdicts import CodeHit


def edits_for(hit: CodeHit, text: str) -> tuple[Edit, ...]:
    """The edits of a rule that has a mechanical repair; nothing for all others."""
    node = hit.origin or hit.node
    if hit.rule in ("PL203", "PL205") and node.end > node.start and not isinstance(node, ir.Formatted):
        return _wrapped(node, text)
    if hit.rule == "PL202" and isinstance(node, ir.Call) and text[node.start : node.end].startswith("json.dumps("):
        return (Edit(node.end - 1, node.end - 1, ", sort_keys=True", safe=False),)
    if hit.rule == "PL705" and isinstance(hit.node, ir.Call):
        return (Edit(hit.node.end - 1, hit.node.end - 1, ", add_special_tokens=False"),)
    return ()


def _wrapped(node: ir.Node, text: str) -> tuple[Edit, ...]:
    source = text[node.start : node.end]
    if "\n" in source or not source or source.startswith("for "):
        return ()
    if isinstance(node, ir.Call) and ir.dotted(node).rsplit(".", 1)[-1] in (
        "walk",
        "as_completed",
        "scandir",
        "readdir",
        "iterdir",
    ):
        return () if ir.dotted(node).endswith(("walk", "readdir", "as_completed")) else _around(node)
    if isinstance(node, ir.Call) and ir.dotted(node).rsplit(".", 1)[-1] in ("list", "tuple") and source.endswith(")"):
        open_at = source.index("(")
        return (Edit(node.start, node.start + open_at, "sorted", safe=True),)
    if isinstance(node, ir.Call) and ir.dotted(node).startswith("fs."):
        return (Edit(node.end, node.end, ".sort()", safe=True),)
    return _around(node)


def _around(node: ir.Node) -> tuple[Edit, ...]:
    return (Edit(node.start, node.start, "sorted(", safe=True), Edit(node.end, node.end, ")", safe=True))
