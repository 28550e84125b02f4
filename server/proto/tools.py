"""Tools between their wire form and values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ...sessions.errors import RequestError
from ...sessions.messages import Tool
from . import session_pb2 as pb


def read_tools(tools: Iterable[pb.Tool]) -> tuple[Tool, ...]:
    return tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))


def _read_tool(tool: pb.Tool, field: str) -> Tool:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters_json:
        try:
            function["parameters"] = msgspec.json.decode(tool.parameters_json, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(
                f"the parameters of tool {tool.name!r} are no JSON object: {error}", field=f"{field}.parameters_json"
            ) from error
    return {"type": "function", "function": function}


def write_tool(tool: Tool) -> pb.Tool:
    """What the wire form has of a tool; a tool that came by another way may have more."""
    function = tool["function"]
    parameters = function.get("parameters")
    return pb.Tool(
        name=function["name"],
        description=function.get("description") or "",
        parameters_json="" if parameters is None else msgspec.json.encode(parameters).decode(),
    )


def write_new_tool(tool: Tool, field: str) -> pb.Tool:
    """Raises RequestError for a tool that is more, or less, than the wire form can say."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("a tool is not a function", field=field, remedy="give it type 'function' and a function")
    unknown = (set(tool) - {"type", "function"}) | (set(function) - {"name", "description", "parameters"})
    if unknown:
        raise RequestError(f"a tool has no {min(unknown)!r}", field=field, remedy="leave it out")
    return write_tool(tool)
