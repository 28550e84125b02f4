"""What OpenAI's and Anthropic's packages know of requests is known here, too: served, told to have no effect, or
refused with its reason. What is new in them shows here first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from anthropic.types import (
    CacheControlEphemeralParam,
    OutputConfigParam,
    TextBlockParam,
    ThinkingBlockParam,
    ThinkingConfigAdaptiveParam,
    ThinkingConfigEnabledParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types import chat
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams
from openai.types.responses import ResponseTextConfigParam
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from sessile.server.web import bodies
from sessile.server.web.anthropic import bodies as messages
from sessile.server.web.responses_api import bodies as responses

KNOWN: list[tuple[Any, type[msgspec.Struct]]] = [
    (ChatParams, bodies.ChatBody),
    (TextParams, bodies.CompletionBody),
    (chat.ChatCompletionSystemMessageParam, bodies.ChatMessage),
    (chat.ChatCompletionDeveloperMessageParam, bodies.ChatMessage),
    (chat.ChatCompletionUserMessageParam, bodies.ChatMessage),
    (chat.ChatCompletionAssistantMessageParam, bodies.ChatMessage),
    (chat.ChatCompletionToolMessageParam, bodies.ChatMessage),
    (chat.ChatCompletionContentPartTextParam, bodies.ContentPart),
    (chat.ChatCompletionStreamOptionsParam, bodies.StreamOptions),
    (ResponseCreateParamsBase, responses.ResponsesBody),
    (ResponseTextConfigParam, responses.TextConfig),
    (MessageCreateParamsBase, messages.MessagesBody),
    (TextBlockParam, messages.TextBlock),
    (ThinkingBlockParam, messages.ThinkingBlock),
    (ToolParam, messages.ToolParam),
    (ToolUseBlockParam, messages.ToolUseBlock),
    (ToolResultBlockParam, messages.ToolResultBlock),
    (CacheControlEphemeralParam, messages.CacheControl),
    (OutputConfigParam, messages.OutputConfig),
    (ThinkingConfigEnabledParam, messages.ThinkingParam),
    (ThinkingConfigAdaptiveParam, messages.ThinkingParam),
]
UNKNOWN = {responses.ResponsesBody: {"access_programs", "background_options", "image"}}  # of what OpenAI runs


@pytest.mark.parametrize(("sent", "body"), KNOWN, ids=lambda kind: kind.__name__)
def test_every_field_of_the_packages_is_known(sent: Any, body: type[msgspec.Struct]) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(body)} | UNKNOWN.get(body, set())
    tag = body.__struct_config__.tag_field
    assert set(sent.__annotations__) <= known | ({tag} if tag else set())
