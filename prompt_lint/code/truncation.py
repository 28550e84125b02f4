"""Statements that drop the oldest messages once there are too many."""

from __future__ import annotations

import re

from . import ir
from .sources import MESSAGES_LIKE

_SIZE = re.compile(r"len|length|size|count|tokens?|limit|max\w*|budget|window", re.IGNORECASE)
_MESSAGES = re.compile(r"(?:^|[._])(?:messages|msgs|conversation|chat_?history|dialog(?:ue)?)$|Messages$|chatHistory$")
_MOST_KEPT_AT_HEAD = 2
_LOW_WATER = 0.7


def drops_oldest(block: ir.Block) -> ir.Call | None:
    """`while len(messages) > limit: messages.pop(1)`, `if (history.length > 20) history.shift()`: the call."""
    if not block.body or not isinstance(block.body[0], ir.Do) or not _compares_size(block.body[0].value):
        return None
    for node in block.body[1:]:
        call = node.value if isinstance(node, ir.Do) else None
        if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and _drops(call):
            name = ir.dotted(call.func.base).rsplit(".", 1)[-1]
            if MESSAGES_LIKE.match(name):
                return call
    return None


def holds_messages(call: ir.Call) -> bool:
    """The name says that it is messages for a model; a `history` may be a log."""
    return isinstance(call.func, ir.Attr) and bool(_MESSAGES.search(ir.dotted(call.func.base)))


def condition_of(block: ir.Block) -> ir.Compare | None:
    """The comparison with a size under which a block runs."""
    first = block.body[0].value if block.body and isinstance(block.body[0], ir.Do) else None
    return first if isinstance(first, ir.Compare) and _compares_size(first) else None


def cuts_by_much(condition: ir.Compare, window: ir.Slice) -> bool:
    """Cut down far below the limit, so that the next cut is far: `if len(messages) > 60: messages[-20:]`.

    A limit in tokens, with a fixed number of messages that are kept, is such a cut as well.
    """
    sides = (condition.left, condition.right)
    if any("token" in ir.dotted(side).lower() for side in sides):
        return window.kept.isdigit()
    limits = [text for side in sides if (text := ir.amount(side)).isdigit()]
    return bool(limits) and window.kept.isdigit() and int(window.kept) <= _LOW_WATER * int(limits[0])


def _compares_size(node: ir.Node) -> bool:
    if isinstance(node, ir.Group):
        return any(_compares_size(part) for part in node.parts)
    if not isinstance(node, ir.Compare) or node.op not in ("Gt", "GtE", ">", ">=", "Lt", "LtE", "<", "<="):
        return False
    sides = (node.left, node.right)
    if any(isinstance(side, ir.Const) and str(side.value) in ("0", "1") for side in sides):
        return False  # whether there are any
    return any(_SIZE.search(ir.dotted(side).rsplit(".", 1)[-1]) for side in sides)


def _drops(call: ir.Call) -> bool:
    last = ir.dotted(call.func).rsplit(".", 1)[-1]
    if last in ("shift", "popleft"):
        return True
    first = call.args[0] if call.args else None
    if last not in ("pop", "splice") or not isinstance(first, ir.Const):
        return False
    at = str(first.value)
    return at.isdigit() and int(at) <= _MOST_KEPT_AT_HEAD
