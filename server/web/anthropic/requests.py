"""From Anthropic's bodies to what the session manager takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ....sessions.errors import RequestError
from ....sessions.keeping import Retain
from ....sessions.manager.requests import CompletionRequest, MessagesInput, ToolChoice, ToolChoiceMode
from ....sessions.manager.validation import require_few_messages, require_identifier
from ....sessions.messages import Message, Role, Tool, ToolCall
from ...engine.grammar import Grammar, GrammarKind
from ...engine.sampling_params import SamplingParams
from ...field_names import FieldNames, flat_tools
from ...text.stop_strings import validate_stop_strings
from ..bodies import fields_without_effect, first_refused_value, metadata_without_effect
from ..foreign_tools import foreign_tool
from ..turn_requests import refuse
from .bodies import (
    Block,
    CacheControl,
    CountTokensBody,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    MessagesBody,
    OutputFormat,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolParam,
    ToolResultBlock,
    ToolUseBlock,
)

OWN_TOOLS = (None, "custom")
TOOL_REMEDY = 'describe it with "name", "description" and "input_schema"'
_TTL_S = {"5m": 300.0, "1h": 3600.0}
_CHOICES = {
    "auto": ToolChoiceMode.AUTO,
    "any": ToolChoiceMode.REQUIRED,
    "tool": ToolChoiceMode.REQUIRED,
    "none": ToolChoiceMode.NONE,
}


def sent_names(body: MessagesBody | CountTokensBody) -> FieldNames:
    """What the body calls the fields that errors name."""
    sent = flat_tools("input_schema")
    wanted = _output(body)
    return FieldNames(sent if wanted is None else sent | {"grammar": f"{wanted[0]}.schema"})


def messages_request(body: MessagesBody, tenant: str) -> CompletionRequest:
    """The turn that a body asks for. Raises RequestError naming the field."""
    validate_stop_strings(body.stop_sequences or (), "stop_sequences")
    return msgspec.structs.replace(
        conversation_request(body, tenant),
        sampling=_sampling(body),
        stop=tuple(body.stop_sequences or ()),
    )


def conversation_request(body: MessagesBody | CountTokensBody, tenant: str) -> CompletionRequest:
    """The conversation of a body, with its tools. Raises RequestError naming the field."""
    refuse(first_refused_value(body), "")
    if not body.messages:
        raise RequestError("messages is empty", field="messages", remedy="send one message or more")
    require_few_messages(body.messages, "messages")
    if body.messages[-1].role != "user":
        raise RequestError(
            "the last message is the assistant's: answers cannot be begun for the model here",
            field=f"messages[{len(body.messages) - 1}].role",
            remedy="end with a message of the user",
        )
    return CompletionRequest(
        prompt=MessagesInput(messages=tuple(_messages(body))),
        tenant=tenant,
        tools=tuple(_tool(index, tool) for index, tool in enumerate(body.tools or ())),
        tool_choice=_tool_choice(body),
        template_arguments=_template_arguments(body),
        retain=_retention(body),
    )


def ignored_fields(body: MessagesBody | CountTokensBody) -> tuple[str, ...]:
    """The fields that were sent and that have no effect, for the header ``x-sessile-ignored``."""
    ignored = [*fields_without_effect(body), *metadata_without_effect(getattr(body, "metadata", None))]
    for name, part in (("thinking", body.thinking), ("output_config", body.output_config)):
        if part is not None:
            ignored += [f"{name}.{field}" for field in fields_without_effect(part)]
    ignored += [f"tools[].{field}" for field in fields_without_effect(*(body.tools or ()))]
    return tuple(ignored)


def shows_thinking(body: MessagesBody) -> bool:
    """Whether the client asked for reasoning."""
    return body.thinking is not None and body.thinking.type != "disabled" and body.thinking.display != "omitted"


def retention_of(body: MessagesBody | CountTokensBody) -> CacheControl | None:
    """The longest retention that any part of the body asks for."""
    asked = list(_cache_controls(body))
    return max(asked, key=lambda control: _TTL_S[control.ttl], default=None)


def _retention(body: MessagesBody | CountTokensBody) -> Retain | None:
    control = retention_of(body)
    return None if control is None else Retain(ttl_s=_TTL_S[control.ttl])


def _cache_controls(body: MessagesBody | CountTokensBody) -> Iterator[CacheControl]:
    blocks: list[object] = [body, *(body.tools or ())]
    blocks += body.system if isinstance(body.system, list) else []
    for message in body.messages:
        if isinstance(message.content, list):
            blocks += message.content
            for block in message.content:
                if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                    blocks += block.content
    for part in blocks:
        control = getattr(part, "cache_control", None)
        if control is not None:
            yield control


def _sampling(body: MessagesBody) -> SamplingParams:
    wanted = _output(body)
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k")}
    params = SamplingParams(
        max_tokens=body.max_tokens,
        grammar=None if wanted is None else _grammar(wanted[1]),
        **{name: value for name, value in given.items() if value is not None},
    )
    params.validate()
    return params


def _output(body: MessagesBody | CountTokensBody) -> tuple[str, OutputFormat] | None:
    """What the answer must look like, and the field that says so. Raises RequestError where two fields do."""
    newer = body.output_config.format if body.output_config is not None else None
    if body.output_format is None:
        return None if newer is None else ("output_config.format", newer)
    if newer is not None:
        raise RequestError(
            "output_config.format and output_format both say what the answer is",
            field="output_format",
            remedy="send output_config.format alone",
        )
    return "output_format", body.output_format


def _grammar(output: OutputFormat) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, msgspec.json.encode(output.schema).decode())


def _template_arguments(body: MessagesBody | CountTokensBody) -> dict[str, bool]:
    """What templates know: Qwen's name for it, and DeepSeek's."""
    if body.thinking is None:
        return {}
    wanted = body.thinking.type != "disabled"
    return {"enable_thinking": wanted, "thinking": wanted}


def _tool_choice(body: MessagesBody | CountTokensBody) -> ToolChoice:
    choice = body.tool_choice
    if choice is None:
        return ToolChoice()
    if (choice.type == "tool") != (choice.name is not None):
        raise RequestError(
            "tool_choice has a name with type tool alone",
            field="tool_choice.name",
            remedy='send {"type": "tool", "name": …}',
        )
    if choice.type in ("any", "tool") and not body.tools:
        raise RequestError("a call is required without tools", field="tool_choice", remedy="send tools")
    return ToolChoice(mode=_CHOICES[choice.type], name=choice.name, parallel=not choice.disable_parallel_tool_use)


def _tool(index: int, tool: ToolParam) -> Tool:
    if tool.type not in OWN_TOOLS or tool.input_schema is msgspec.UNSET:
        raise foreign_tool(index, tool.type, TOOL_REMEDY)
    described = {"description": tool.description} if tool.description else {}
    function = {"name": tool.name, **described, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _messages(body: MessagesBody | CountTokensBody) -> Iterator[Message]:
    system = body.system
    if isinstance(system, list):
        system = "\n".join(_text(block, f"system[{index}]") for index, block in enumerate(system))
    if system:
        yield Message(role=Role.SYSTEM, content=system)
    for index, message in enumerate(body.messages):
        where = f"messages[{index}]"
        if isinstance(message.content, str):
            yield Message(role=Role(message.role), content=message.content)
        elif message.role == "user":
            yield from _user_messages(message.content, where)
        else:
            yield _assistant_message(message, message.content, where)


def _user_messages(blocks: Sequence[Block], where: str) -> Iterator[Message]:
    """A message for each result, and one for each run of texts."""
    texts: list[str] = []
    if not blocks:
        raise RequestError(f"{where} has no content", field=f"{where}.content")
    for index, block in enumerate(blocks):
        at = f"{where}.content[{index}]"
        match block:
            case TextBlock():
                texts.append(_text(block, at))
            case ToolResultBlock():
                if texts:
                    yield Message(role=Role.USER, content="\n".join(texts))
                    texts = []
                yield _tool_message(block, at)
            case _:
                raise _unreadable(block, at, "a user's message")
    if texts:
        yield Message(role=Role.USER, content="\n".join(texts))


def _tool_message(block: ToolResultBlock, where: str) -> Message:
    require_identifier(block.tool_use_id, f"{where}.tool_use_id")
    content = block.content
    if isinstance(content, list):
        texts = []
        for index, part in enumerate(content):
            if not isinstance(part, TextBlock):
                raise _unreadable(part, f"{where}.content[{index}]", "a tool's result")
            texts.append(_text(part, f"{where}.content[{index}]"))
        content = "\n".join(texts)
    content = content or ""
    if block.is_error:
        content = f"Error: {content}"
    return Message(role=Role.TOOL, content=content, tool_call_id=block.tool_use_id)


def _assistant_message(message: InputMessage, blocks: Sequence[Block], where: str) -> Message:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(_text(block, f"{where}.content[{index}]"))
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case RedactedThinkingBlock():
                pass  # nobody but its maker can read it
            case ToolUseBlock(id=call_id, name=name, input=arguments):
                require_identifier(name, f"{where}.content[{index}].name")
                written = msgspec.json.encode(arguments).decode()
                calls.append(ToolCall(id=call_id, name=name, arguments=written))
            case _:
                raise _unreadable(block, f"{where}.content[{index}]", "an assistant's message")
    return Message(
        role=Role.ASSISTANT,
        content="".join(texts),
        tool_calls=tuple(calls),
        reasoning="\n".join(thoughts) or None,
    )


def _text(block: TextBlock, where: str) -> str:
    """The text of a block. Raises RequestError for what else it says and has no neutral value."""
    refuse(first_refused_value(block), f"{where}.")
    return block.text


def _unreadable(block: Block, field: str, where: str) -> RequestError:
    match block:
        case ImageBlock():
            return RequestError("images cannot be read here", field=field, remedy="send text")
        case DocumentBlock():
            return RequestError("documents cannot be read here", field=field, remedy="send their text")
        case _:
            kind = block.__struct_config__.tag
            return RequestError(f"a block of type {kind} has no place in {where}", field=field)
