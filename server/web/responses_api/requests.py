"""From bodies of the Responses API to what the session manager takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ....sessions.errors import RequestError
from ....sessions.manager.requests import (
    CompletionRequest,
    ConversationEnd,
    MessagesInput,
    ToolChoice,
    ToolChoiceMode,
)
from ....sessions.messages import Message, Role, Tool
from ...engine.grammar import Grammar, GrammarKind
from ...engine.sampling_params import SamplingParams
from ...field_names import FieldNames, flat_tools
from ..bodies import fields_without_effect, first_refused_value
from ..foreign_tools import foreign_tool
from ..turn_requests import ELSEWHERE_UNSET, refuse
from .bodies import NamedFunction, ResponsesBody
from .items import messages_of


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What a response continues: the messages, without instructions of the API's own, and where they end."""

    messages: Sequence[Message] = ()
    end: ConversationEnd | None = None
    session_id: str | None = None  # of a conversation, which the turn must advance
    tools: tuple[Tool, ...] = ()  # of a session that has its own


OWN_TOOLS = ("function",)
TOOL_REMEDY = 'send {"type": "function", "name": …, "parameters": …}'
SENT_NAMES = FieldNames(
    {
        "max_tokens": "max_output_tokens",
        "grammar": "text.format.schema",
        "messages": "input",
        "session_id": "conversation",
    }
    | flat_tools("parameters")
)
"""What the API calls the fields that errors name."""


def response_request(body: ResponsesBody, tenant: str, before: Before) -> CompletionRequest:
    """The turn that a body asks for. Raises RequestError naming the field."""
    check(body)
    system = [Message(role=Role.SYSTEM, content=body.instructions)] if body.instructions else []
    new = messages_of(body.input or "")
    if not new and not before.messages:
        raise RequestError("input is empty", field="input", remedy="send a text or items")
    tools = tuple(tools_of(body)) or before.tools
    return CompletionRequest(
        prompt=MessagesInput(messages=(*system, *before.messages, *new)),
        tenant=tenant,
        tools=tools,
        sampling=_sampling(body),
        tool_choice=_tool_choice(body, tools),
        keep=body.store is not False,
        after=before.end,
        session_id=before.session_id,
    )


def check(body: ResponsesBody) -> None:
    """Raise RequestError for a value that is not served."""
    refuse(first_refused_value(body), "")
    if body.previous_response_id is not None and body.conversation is not None:
        raise RequestError(
            "previous_response_id and conversation both say what is continued",
            field="previous_response_id",
            remedy="send one of them",
        )
    if body.conversation is not None and body.store is False:
        raise RequestError("a conversation is always kept", field="store", remedy="leave it out, or send true")


def ignored_fields(body: ResponsesBody) -> tuple[str, ...]:
    """The fields that were sent and that have no effect, for the header ``x-sessile-ignored``."""
    ignored = list(fields_without_effect(body))
    parts: tuple[tuple[str, msgspec.Struct | None], ...] = (
        ("text", body.text),
        ("reasoning", body.reasoning),
        ("stream_options", body.stream_options),
    )
    for name, part in parts:
        if part is not None:
            ignored += [f"{name}.{field}" for field in fields_without_effect(part)]
    ignored += [f"tools[].{field}" for field in fields_without_effect(*(body.tools or ()))]
    return tuple(ignored)


def tools_of(body: ResponsesBody) -> list[Tool]:
    """The tools in the shape that templates know. Raises RequestError for one that is not the client's own."""
    tools: list[Tool] = []
    for index, tool in enumerate(body.tools or ()):
        if tool.type not in OWN_TOOLS or not tool.name:
            raise foreign_tool(index, tool.type, TOOL_REMEDY)
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.parameters is not None:
            function["parameters"] = tool.parameters
        tools.append({"type": "function", "function": function})
    return tools


def _tool_choice(body: ResponsesBody, tools: Sequence[Tool]) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    if body.tool_choice not in (None, "auto", "none") and not tools:
        raise RequestError("a call is required without tools", field="tool_choice", remedy='send tools, or "auto"')
    match body.tool_choice:
        case NamedFunction(name=name):
            return ToolChoice(mode=ToolChoiceMode.REQUIRED, name=name, parallel=parallel)
        case None:
            return ToolChoice(parallel=parallel)
        case mode:
            return ToolChoice(mode=ToolChoiceMode(mode), parallel=parallel)


def _sampling(body: ResponsesBody) -> SamplingParams:
    given = {name: getattr(body, name) for name in ("temperature", "top_p")}
    given |= {name: getattr(body, name) for name in ("top_k", "seed") if getattr(body, name) != ELSEWHERE_UNSET}
    params = SamplingParams(
        max_tokens=body.max_output_tokens,
        grammar=_grammar(body),
        **{name: value for name, value in given.items() if value is not None},
    )
    with SENT_NAMES.told():
        params.validate()
    return params


def _grammar(body: ResponsesBody) -> Grammar | None:
    wanted = body.text.format if body.text is not None else None
    if wanted is None:
        return None
    if (wanted.type == "json_schema") != (wanted.schema is not None):
        raise RequestError(
            f"text.format is of type {wanted.type} and has {'no' if wanted.schema is None else 'a'} schema",
            field="text.format.schema",
            remedy='send type "json_schema" and a schema, or none of them',
        )
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar(GrammarKind.JSON_OBJECT)
    return Grammar(GrammarKind.JSON_SCHEMA, msgspec.json.encode(wanted.schema).decode())
