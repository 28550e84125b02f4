"""PL201, PL501, PL502: the list of tools."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, ClassVar

from ..breaks import Break
from ..divergence import canonical
from ..prompt import Prompt, Section
from .base import Verdict


def named_tools(prompt: Prompt) -> list[tuple[str, str]]:
    """(name, canonical JSON) of each tool, in the order sent; function declarations are looked into."""
    found: list[tuple[str, str]] = []
    for unit in prompt.units:
        if unit.section is not Section.TOOLS:
            break
        found.extend((_name(tool), json.dumps(canonical(tool))) for tool in _declared(unit.value))
    return found


def _declared(value: Any) -> list[Any]:
    if isinstance(value, dict):
        inner = value.get("functionDeclarations") or value.get("function_declarations")
        if isinstance(inner, list):
            return inner
    return [value]


def _name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return str(tool)
    for key in ("function", "toolSpec"):
        if isinstance(tool.get(key), dict):
            return str(tool[key].get("name", ""))
    return str(tool.get("name") or tool.get("type") or "")


def _tools_parted(brk: Break) -> bool:
    return Section.TOOLS in (brk.section, brk.now_unit.section if brk.now_unit else None)


class ToolOrder:
    """The same tools in another order."""

    code: ClassVar[str] = "PL201"

    def judge(self, brk: Break) -> Verdict | None:
        was, now = named_tools(brk.previous), named_tools(brk.current)
        if not _tools_parted(brk) or was == now:
            return None
        if len(was) >= 2 and Counter(was) == Counter(now):
            return Verdict(self.code, "the same tools are sent in another order")
        names = [name for name, _ in was], [name for name, _ in now]
        if names[0] != names[1] and Counter(names[0]) == Counter(names[1]):
            return Verdict(self.code, "the same tools are sent in another order")
        return None


class ToolSetChanged:
    """Tools were added or removed."""

    code: ClassVar[str] = "PL501"

    def judge(self, brk: Break) -> Verdict | None:
        if not _tools_parted(brk):
            return None
        was, now = ({name for name, _ in named_tools(p)} for p in (brk.previous, brk.current))
        if was == now:
            return None
        added, removed = ", ".join(sorted(now - was)), ", ".join(sorted(was - now))
        change = "; ".join(
            part for part in (f"added {added}" if added else "", f"removed {removed}" if removed else "") if part
        )
        return Verdict(self.code, f"the set of tools changed ({change})")


class ToolSchemaDrift:
    """A tool of the same name has another description or schema."""

    code: ClassVar[str] = "PL502"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.section is not Section.TOOLS:
            return None
        was = brk.text.block[0] if brk.text else None
        now = brk.text.block[1] if brk.text else None
        return Verdict(self.code, f"a tool's definition changed at {brk.place.path}", was=was, now=now)
