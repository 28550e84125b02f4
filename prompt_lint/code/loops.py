"""Order that a loop brings to what is gathered in it."""

from __future__ import annotations

from . import ir
from .values import ORDER_KINDS, Kind, Mark, Value


def loop_marks(source: ir.Node, iterated: Value, *, ordered_sets: bool) -> tuple[Mark, ...]:
    """Marks of order for things gathered while iterating over a value."""
    marks = tuple(m for m in iterated.marks if m.kind in ORDER_KINDS or m.kind is Kind.WINDOW)
    if iterated.is_set and not ordered_sets:
        marks = (*marks, Mark(Kind.UNORDERED, source, source))
    return marks


def touched_containers(body: list[ir.Node]) -> frozenset[str]:
    """Names that are made anew inside a loop's body: what is gathered in them does not outlive a round."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ir.Assign) and not node.augmented:
            names |= {target.id for target in node.targets if isinstance(target, ir.Name)}
        elif isinstance(node, ir.Block):
            names = names.union(*(touched_containers(path) for path in node.paths))
    return frozenset(names)
