"""Tools that are not the client's own: those that OpenAI or Anthropic run or define, whose fields nobody knows here."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from ...sessions.errors import RequestError


class _AnyTool(msgspec.Struct, frozen=True):
    """What every tool says."""

    type: str | None = None


class _Tools(msgspec.Struct, frozen=True):
    """The tools of a body of any kind."""

    tools: list[_AnyTool] | None = None


_decode = msgspec.json.Decoder(_Tools).decode


def foreign_tools(own: Collection[str | None], remedy: str) -> Callable[[bytes], RequestError | None]:
    """Finds the first tool of a body whose type is none of ``own``; None: there is none, or the body has no form."""

    def first(body: bytes) -> RequestError | None:
        try:
            tools = _decode(body).tools or ()
        except (msgspec.DecodeError, RecursionError):
            return None
        index = next((index for index, tool in enumerate(tools) if tool.type not in own), None)
        return None if index is None else foreign_tool(index, tools[index].type, remedy)

    return first


def foreign_tool(index: int, kind: str | None, remedy: str) -> RequestError:
    """The error for a tool that cannot be called here."""
    return RequestError(
        f"tools[{index}] ({kind}) is not a tool of the client's own", field=f"tools[{index}].type", remedy=remedy
    )
