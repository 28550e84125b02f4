"""Lines that agents put before the system prompt for their own servers, and that change with every request.

Such a line (``x-anthropic-billing-header: cc_version=…; cch=…;``) tells a model nothing, and as the first text of every
prompt it makes the whole rest of it new each time. It is left out of the prompt, and its name is told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..messages import Message, Role

# A header's name that speaks of accounting, and nothing but pairs behind it: no instruction to a model looks like that.
_LINE = re.compile(
    r"[ \t]*(?P<name>x-[a-z0-9-]*(?:billing|telemetry|attribution|nonce|trace)[a-z0-9-]*):"
    r"[ \t]*(?:[\w.-]+=[^\s;,]*[ \t]*[;,]?[ \t]*)+(?:\r?\n|\Z)",
    re.IGNORECASE,
)
_FIRST = (Role.SYSTEM, Role.DEVELOPER)


class Neutralised(msgspec.Struct, frozen=True):
    """Messages without transport lines, and the names of the lines that were there."""

    messages: tuple[Message, ...]
    names: tuple[str, ...] = ()


def neutralised(messages: Sequence[Message]) -> Neutralised:
    """Leave out the transport lines at the head of the first message, if that is the system's; a message that was
    nothing else is left out too, and the next one is looked at."""
    names: list[str] = []
    kept = list(messages)
    while kept and kept[0].role in _FIRST:
        content = kept[0].content
        while match := _LINE.match(content):
            names.append(match["name"].lower())
            content = content[match.end() :]
        if content == kept[0].content:
            break
        if content.strip() or len(kept) == 1:
            kept[0] = msgspec.structs.replace(kept[0], content=content)
            break
        del kept[0]
    return Neutralised(tuple(kept), tuple(names)) if names else Neutralised(tuple(messages))
