"""Requests of the session API, between their wire form and values; the server reads, the client writes.

A wire form that no value stands for (a role left out, a tool whose schema is no JSON) is a RequestError that names the
field.
"""

from __future__ import annotations

from ...sessions.errors import RequestError
from ...sessions.manager.requests import (
    AppendRequest,
    CloseRequest,
    ForkRequest,
    GenerateRequest,
    ListSessions,
    MessagesInput,
    OpenSession,
    RollbackRequest,
    TextInput,
    TokenIdsInput,
    ToolChoice,
    ToolChoiceMode,
    ToolResultInput,
    TurnInput,
)
from ...sessions.messages import Message, Role, ToolCall
from ...sessions.session import AtToken, AtTurn, Point
from ..engine.messages import Priority
from . import session_pb2 as pb
from .changes import read_change, write_change
from .policy import read_asked_policy, write_policy
from .sampling import read_sampling, write_sampling
from .tools import read_tools, write_new_tool

DEFAULT_PAGE_SIZE = 100

_ROLES: dict[pb.Role.ValueType, Role] = {
    pb.ROLE_SYSTEM: Role.SYSTEM,
    pb.ROLE_DEVELOPER: Role.DEVELOPER,
    pb.ROLE_USER: Role.USER,
    pb.ROLE_ASSISTANT: Role.ASSISTANT,
    pb.ROLE_TOOL: Role.TOOL,
}
_WIRE_ROLES = {role: wire for wire, role in _ROLES.items()}
_PRIORITIES: dict[pb.Priority.ValueType, Priority] = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BACKGROUND: Priority.BACKGROUND,
    pb.PRIORITY_BATCH: Priority.BATCH,
}
_WIRE_PRIORITIES = {
    Priority.INTERACTIVE: pb.PRIORITY_INTERACTIVE,
    Priority.BACKGROUND: pb.PRIORITY_BACKGROUND,
    Priority.BATCH: pb.PRIORITY_BATCH,
}
_TOOL_CHOICES: dict[pb.ToolChoiceMode.ValueType, ToolChoiceMode] = {
    pb.TOOL_CHOICE_MODE_UNSPECIFIED: ToolChoiceMode.AUTO,
    pb.TOOL_CHOICE_MODE_AUTO: ToolChoiceMode.AUTO,
    pb.TOOL_CHOICE_MODE_NONE: ToolChoiceMode.NONE,
    pb.TOOL_CHOICE_MODE_REQUIRED: ToolChoiceMode.REQUIRED,
}
_WIRE_TOOL_CHOICES = {
    ToolChoiceMode.AUTO: pb.TOOL_CHOICE_MODE_AUTO,
    ToolChoiceMode.NONE: pb.TOOL_CHOICE_MODE_NONE,
    ToolChoiceMode.REQUIRED: pb.TOOL_CHOICE_MODE_REQUIRED,
}


def read_open(message: pb.OpenRequest, tenant: str) -> OpenSession:
    return OpenSession(
        tenant=tenant,
        model=message.model or None,
        system=message.system if message.HasField("system") else None,
        tools=read_tools(message.tools),
        request_id=message.request_id or None,
        persistence=read_asked_policy(message.persistence),
    )


def write_open(request: OpenSession) -> pb.OpenRequest:
    return pb.OpenRequest(
        tenant=request.tenant,
        model=request.model or "",
        system=request.system,
        tools=[write_new_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools)],
        request_id=request.request_id or "",
        persistence=None if request.persistence is None else write_policy(request.persistence),
    )


def read_append(message: pb.AppendRequest, tenant: str) -> AppendRequest:
    if not message.HasField("input"):
        raise RequestError("there is no input", field="input", remedy="send messages, text, token ids or a tool result")
    return AppendRequest(
        **read_change(message, tenant), input=read_input(message.input), priority=_read_priority(message.priority)
    )


def write_append(request: AppendRequest) -> pb.AppendRequest:
    message = pb.AppendRequest(input=write_input(request.input), priority=_WIRE_PRIORITIES[request.priority])
    write_change(message, request)
    return message


def read_generate(message: pb.GenerateRequest, tenant: str) -> GenerateRequest:
    return GenerateRequest(
        **read_change(message, tenant),
        input=read_input(message.input) if message.HasField("input") else None,
        sampling=read_sampling(message.sampling),
        stop=tuple(message.stop),
        priority=_read_priority(message.priority),
        tool_choice=_read_tool_choice(message.tool_choice),
    )


def write_generate(request: GenerateRequest) -> pb.GenerateRequest:
    message = pb.GenerateRequest(
        input=None if request.input is None else write_input(request.input),
        sampling=write_sampling(request.sampling),
        stop=request.stop,
        priority=_WIRE_PRIORITIES[request.priority],
    )
    if request.tool_choice != ToolChoice():
        message.tool_choice.CopyFrom(_write_tool_choice(request.tool_choice))
    write_change(message, request)
    return message


def read_fork(message: pb.ForkRequest, tenant: str) -> ForkRequest:
    return ForkRequest(
        **read_change(message, tenant), at=read_point(message.at, "at") if message.HasField("at") else None
    )


def write_fork(request: ForkRequest) -> pb.ForkRequest:
    message = pb.ForkRequest(at=None if request.at is None else write_point(request.at))
    write_change(message, request)
    return message


def read_rollback(message: pb.RollbackRequest, tenant: str) -> RollbackRequest:
    return RollbackRequest(**read_change(message, tenant), to=read_point(message.to, "to"))


def write_rollback(request: RollbackRequest) -> pb.RollbackRequest:
    message = pb.RollbackRequest(to=write_point(request.to))
    write_change(message, request)
    return message


def read_close(message: pb.CloseRequest, tenant: str) -> CloseRequest:
    return CloseRequest(**read_change(message, tenant))


def write_close(request: CloseRequest) -> pb.CloseRequest:
    message = pb.CloseRequest()
    write_change(message, request)
    return message


def read_list(message: pb.ListRequest, tenant: str) -> ListSessions:
    return ListSessions(tenant=tenant, page_size=message.page_size or DEFAULT_PAGE_SIZE, page_token=message.page_token)


def write_list(request: ListSessions) -> pb.ListRequest:
    return pb.ListRequest(tenant=request.tenant, page_size=request.page_size, page_token=request.page_token)


def read_point(message: pb.Point, field: str) -> Point:
    match message.WhichOneof("at"):
        case "turn":
            return AtTurn(message.turn)
        case "token":
            return AtToken(message.token)
        case _:
            raise RequestError("no point is named", field=field, remedy="name a turn or a token")


def write_point(point: Point) -> pb.Point:
    match point:
        case AtTurn(turn):
            return pb.Point(turn=turn)
        case AtToken(token):
            return pb.Point(token=token)


def read_input(message: pb.TurnInput) -> TurnInput:
    match message.WhichOneof("form"):
        case "messages":
            messages = message.messages.messages
            return MessagesInput(
                tuple(read_message(one, f"input.messages[{index}]") for index, one in enumerate(messages))
            )
        case "text":
            return TextInput(message.text)
        case "token_ids":
            return TokenIdsInput(tuple(message.token_ids.ids))
        case "tool_result":
            result = message.tool_result
            return ToolResultInput(result.tool_call_id, result.content, result.name or None)
        case _:
            raise RequestError(
                "the input has no content", field="input", remedy="send messages, text, token ids or a tool result"
            )


def write_input(turn_input: TurnInput) -> pb.TurnInput:
    match turn_input:
        case MessagesInput(messages):
            return pb.TurnInput(messages=pb.MessageList(messages=[write_message(message) for message in messages]))
        case TextInput(text):
            return pb.TurnInput(text=text)
        case TokenIdsInput(token_ids):
            return pb.TurnInput(token_ids=pb.TokenList(ids=token_ids))
        case ToolResultInput():
            return pb.TurnInput(
                tool_result=pb.ToolResult(
                    tool_call_id=turn_input.tool_call_id, content=turn_input.content, name=turn_input.name or ""
                )
            )


def read_message(message: pb.Message, field: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise RequestError("a message has no role", field=f"{field}.role", remedy="say who speaks")
    return Message(
        role=role,
        content=message.content,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments=call.arguments_json or "{}") for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id or None,
        name=message.name or None,
        reasoning=message.reasoning or None,
    )


def write_message(message: Message) -> pb.Message:
    return pb.Message(
        role=_WIRE_ROLES[message.role],
        content=message.content,
        tool_calls=[
            pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments) for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
        reasoning=message.reasoning or "",
    )


def _read_priority(priority: pb.Priority.ValueType) -> Priority:
    known = _PRIORITIES.get(priority)
    if known is None:
        raise RequestError(f"there is no priority {priority}", field="priority")
    return known


def _read_tool_choice(message: pb.ToolChoice) -> ToolChoice:
    mode = _TOOL_CHOICES.get(message.mode)
    if mode is None:
        raise RequestError(f"there is no mode {message.mode}", field="tool_choice.mode")
    return ToolChoice(mode=mode, name=message.name or None, parallel=not message.one_call)


def _write_tool_choice(choice: ToolChoice) -> pb.ToolChoice:
    return pb.ToolChoice(mode=_WIRE_TOOL_CHOICES[choice.mode], name=choice.name or "", one_call=not choice.parallel)
