"""What can be refused of a request before any work is done for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...server.engine.messages import EngineReady
from ...server.engine.sampling_params import SamplingParams
from ...server.text.messages import require_shallow
from ...server.text.stop_strings import validate_stop_strings
from ..errors import ContextOverflow, RequestError
from ..keeping import PersistencePolicy
from ..messages import Message, Tool
from .requests import (
    CompletionRequest,
    GenerateRequest,
    ListSessions,
    MessagesInput,
    Mutation,
    OpenSession,
    TextInput,
    TokenIdsInput,
    ToolChoice,
    ToolChoiceMode,
    ToolResultInput,
    TurnInput,
)

MAX_IDENTIFIER_CHARACTERS = 200  # of session ids, request ids, tenants
MAX_MESSAGES = 10_000
MAX_TOOLS = 1_000
MAX_TEMPLATE_ARGUMENT_BYTES = 64 * 1024
MAX_PAGE_SIZE = 1_000

_OWN_TEMPLATE_ARGUMENTS = {"messages", "tools", "add_generation_prompt", "previous", "new", "log_end"}  # set here


def require_text(text: str, field: str) -> None:
    """Raise RequestError unless ``text`` is Unicode that can be stored and tokenised."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{field} has a lone surrogate at character {error.start}", field=field, remedy="send valid Unicode"
        ) from error


def require_identifier(identifier: str | None, field: str) -> None:
    """Raise RequestError unless it is None or a short text of printable characters."""
    if identifier is None:
        return
    if not identifier:
        raise RequestError(f"{field} is empty", field=field, remedy="leave it out, or give it a value")
    if len(identifier) > MAX_IDENTIFIER_CHARACTERS or not identifier.isprintable():
        raise RequestError(
            f"{field} is not an identifier",
            field=field,
            remedy=f"use at most {MAX_IDENTIFIER_CHARACTERS} printable characters",
        )


def require_tenant(tenant: str) -> None:
    """Raise RequestError unless the tenant is empty or an identifier."""
    require_identifier(tenant or None, "tenant")


def require_session_id(session_id: str) -> None:
    """Raise RequestError unless it may be the id of a session."""
    require_identifier(session_id, "session_id")


def require_mutation(request: Mutation) -> None:
    """Raise RequestError unless the request names a session, and itself, in a way that can be looked up."""
    require_tenant(request.tenant)
    require_session_id(request.session_id)
    require_identifier(request.request_id, "request_id")


def require_opening(request: OpenSession) -> None:
    """Raise RequestError unless such a session can be opened."""
    require_tenant(request.tenant)
    require_identifier(request.request_id, "request_id")
    require_opening_of(request.system, request.tools, request.persistence)


def require_opening_of(system: str | None, tools: Sequence[Tool], persistence: PersistencePolicy | None) -> None:
    """Raise RequestError unless a session can be about these."""
    require_text(system or "", "system")
    require_tools(tools)
    if persistence is not None:
        persistence.validate()


def require_turn(request: GenerateRequest, engine: EngineReady) -> None:
    """Raise RequestError naming the first thing that no session could answer."""
    require_mutation(request)
    require_sampling(request.sampling, request.stop, engine, "sampling.")
    if request.input is not None:
        require_input(request.input, engine, "input")


def require_completion(request: CompletionRequest, engine: EngineReady) -> None:
    """Raise RequestError naming the first thing that cannot be answered."""
    require_tenant(request.tenant)
    require_sampling(request.sampling, request.stop, engine)
    require_tools(request.tools)
    require_tool_choice(request.tool_choice, request.tools)
    _require_template_arguments(request.template_arguments)
    require_input(request.prompt, engine, "messages" if isinstance(request.prompt, MessagesInput) else "prompt")


def _require_template_arguments(arguments: dict[str, Any], field: str = "chat_template_kwargs") -> None:
    for name in _OWN_TEMPLATE_ARGUMENTS & set(arguments):
        raise RequestError(f"{name} is not an argument of the template", field=f"{field}.{name}", remedy="leave it out")
    _require_small(arguments, field)
    _require_json(arguments, field)


def _require_small(arguments: dict[str, Any], field: str) -> None:
    """Raise RequestError for arguments that take long to look at; what cannot be written as JSON is for others."""
    try:
        size = len(msgspec.json.encode(arguments))
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        return
    if size > MAX_TEMPLATE_ARGUMENT_BYTES:
        raise RequestError(
            f"the arguments have {size} bytes", field=field, remedy=f"at most {MAX_TEMPLATE_ARGUMENT_BYTES} as JSON"
        )


def require_listing(request: ListSessions) -> None:
    """Raise RequestError unless a page of that size can be made."""
    require_tenant(request.tenant)
    require_identifier(request.page_token or None, "page_token")
    if not 1 <= request.page_size <= MAX_PAGE_SIZE:
        raise RequestError(
            f"page_size is {request.page_size}", field="page_size", remedy=f"it must be from 1 to {MAX_PAGE_SIZE}"
        )


def require_tools(tools: Sequence[Tool], field: str = "tools") -> None:
    """Raise RequestError unless every tool is a function with a name."""
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"{len(tools)} tools", field=field, remedy=f"at most {MAX_TOOLS}")
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise RequestError("a tool is not a function", field=f"{field}[{index}]", remedy="give it type 'function'")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise RequestError("a tool has no name", field=f"{field}[{index}].function.name")
        _require_function(function, f"{field}[{index}].function")
    _require_json(tools, field)


def _require_function(function: Mapping[str, Any], where: str) -> None:
    """Raise RequestError unless what a function says of itself can be read: arguments are an object."""
    if not isinstance(function.get("description"), str | None):
        raise RequestError("the description is not a text", field=f"{where}.description", remedy="send a text")
    parameters = function.get("parameters")
    types = parameters.get("type", "object") if isinstance(parameters, dict) else "object"
    if not isinstance(parameters, dict | None) or "object" not in (types if isinstance(types, list) else [types]):
        raise RequestError(
            "the parameters are not a JSON schema of an object",
            field=f"{where}.parameters",
            remedy='send {"type": "object", "properties": {…}}, or leave them out',
        )


def require_tool_choice(choice: ToolChoice, tools: Sequence[Tool], field: str = "tool_choice") -> None:
    """Raise RequestError unless the tools that an answer must call are there."""
    names = [tool["function"]["name"] for tool in tools]
    if choice.name is not None and choice.mode is not ToolChoiceMode.REQUIRED:
        raise RequestError("only a required tool has a name", field=f"{field}.name", remedy="set the mode to required")
    if choice.name is not None and choice.name not in names:
        raise RequestError(f"there is no tool {choice.name!r}", field=f"{field}.name", remedy="name one of the tools")
    if choice.mode is ToolChoiceMode.REQUIRED and not names:
        raise RequestError("a call is required, but there are no tools", field=field, remedy="send tools, or auto")


def _require_json(value: object, field: str) -> None:
    require_shallow(value, field)
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise RequestError(f"{field} cannot be written as JSON: {error}", field=field) from error


def require_input(turn_input: TurnInput, engine: EngineReady, field: str) -> None:
    """Raise RequestError unless there is something in it, and all of it can be tokenised."""
    match turn_input:
        case MessagesInput(messages):
            _require_messages(messages, f"{field}.messages" if field != "messages" else field)
        case TextInput(text):
            if not text:
                raise RequestError("the text is empty", field=field)
            require_text(text, field)
        case TokenIdsInput(token_ids):
            _require_token_ids(token_ids, engine, field)
        case ToolResultInput():
            require_identifier(turn_input.tool_call_id, f"{field}.tool_call_id")
            require_identifier(turn_input.name, f"{field}.name")
            require_text(turn_input.content, f"{field}.content")


def require_few_messages(messages: Sequence[object], field: str) -> None:
    """Raise RequestError for more messages, in whatever form, than can be looked at without holding up others."""
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"{len(messages)} messages", field=field, remedy=f"at most {MAX_MESSAGES} at once")


def _require_messages(messages: Sequence[Message], field: str) -> None:
    if not messages:
        raise RequestError("there are no messages", field=field, remedy="send at least one")
    require_few_messages(messages, field)
    for index, message in enumerate(messages):
        where = f"{field}[{index}]"
        require_text(message.content, f"{where}.content")
        require_text(message.reasoning or "", f"{where}.reasoning")
        require_identifier(message.tool_call_id, f"{where}.tool_call_id")
        require_identifier(message.name, f"{where}.name")
        for call_index, call in enumerate(message.tool_calls):
            require_identifier(call.name, f"{where}.tool_calls[{call_index}].name")
            require_text(call.id, f"{where}.tool_calls[{call_index}].id")
            require_text(call.arguments, f"{where}.tool_calls[{call_index}].arguments")


def _require_token_ids(token_ids: Sequence[int], engine: EngineReady, field: str) -> None:
    if not token_ids:
        raise RequestError("there are no token ids", field=field, remedy="send at least one")
    if min(token_ids) < 0 or max(token_ids) >= engine.vocab_size:
        index = next(i for i, token_id in enumerate(token_ids) if not 0 <= token_id < engine.vocab_size)
        raise RequestError(
            f"token id {token_ids[index]} at {index} is not in the vocabulary",
            field=f"{field}[{index}]",
            remedy=f"ids are from 0 to {engine.vocab_size - 1}",
        )


def require_sampling(sampling: SamplingParams, stop: Sequence[str], engine: EngineReady, within: str = "") -> None:
    """Raise RequestError naming the first parameter that is out of range. ``within``: what stands before its name."""
    try:
        sampling.validate()
    except RequestError as error:
        error.field = f"{within}{error.field}"
        raise
    validate_stop_strings(stop)
    for index, text in enumerate(stop):
        require_text(text, f"stop[{index}]")
    for index, token_id in enumerate(sampling.stop_token_ids):
        if not 0 <= token_id < engine.vocab_size:
            raise RequestError(
                f"token id {token_id} is not in the vocabulary",
                field=f"{within}stop_token_ids[{index}]",
                remedy=f"ids are from 0 to {engine.vocab_size - 1}",
            )
    for token_id in sampling.logit_bias:
        if not 0 <= token_id < engine.vocab_size:
            raise RequestError(
                f"token id {token_id} is not in the vocabulary",
                field=f"{within}logit_bias[{token_id}]",
                remedy=f"ids are from 0 to {engine.vocab_size - 1}",
            )


def require_room(
    num_tokens: int, max_tokens: int | None, engine: EngineReady, field: str, asked_in: str = "max_tokens"
) -> None:
    """Raise ContextOverflow unless the prompt and the tokens asked for (at least 1) fit the context.

    ``field`` has the prompt, ``asked_in`` says how many tokens are asked for.
    """
    limit = engine.context_length
    if num_tokens + 1 > limit:
        raise ContextOverflow(
            f"the prompt has {num_tokens} tokens, the context holds {limit} with the answer",
            limit=limit,
            field=field,
            remedy="roll back, or send less",
        )
    if max_tokens is not None and num_tokens + max_tokens > limit:
        raise ContextOverflow(
            f"the prompt's {num_tokens} tokens and {asked_in} {max_tokens} exceed the context of {limit}",
            limit=limit,
            field=asked_in,
            remedy=f"ask for at most {limit - num_tokens} tokens, or leave {asked_in} out",
        )
