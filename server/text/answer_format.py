"""How a model writes tool calls and reasoning: found in its chat template and vocabulary, unless it is configured."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar
from .reasoning import BRACKETS, THINK, ReasoningTags
from .tool_calls import grammar
from .tool_calls.grammar import SpecialToken
from .tool_calls.hermes import HermesParser
from .tool_calls.mistral import MistralParser
from .tool_calls.numbers import CallNumbers, ToolCallParser
from .tool_calls.plain_json import Llama3Parser, PlainJsonParser


class ToolFormat(enum.StrEnum):
    """How calls are written."""

    AUTO = "auto"
    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    JSON = "json"
    NONE = "none"  # calls stay text


class ReasoningFormat(enum.StrEnum):
    """How reasoning is written."""

    AUTO = "auto"
    THINK = "think"
    MISTRAL = "mistral"
    NONE = "none"  # reasoning stays text


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is read out of the model's text."""

    tool_parser: Annotated[
        ToolFormat, Meta(description="how the model writes tool calls; auto: as its chat template says")
    ] = ToolFormat.AUTO
    reasoning_parser: Annotated[
        ReasoningFormat, Meta(description="how the model writes its reasoning; auto: as its chat template says")
    ] = ReasoningFormat.AUTO


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The formats of one model, and why these (``because``)."""

    tools: ToolFormat = ToolFormat.JSON
    reasoning: ReasoningFormat = ReasoningFormat.NONE
    because: str = "nothing else is known"

    @property
    def tags(self) -> ReasoningTags | None:
        """What stands around reasoning; None if it stays text."""
        match self.reasoning:
            case ReasoningFormat.THINK:
                return THINK
            case ReasoningFormat.MISTRAL:
                return BRACKETS
            case _:
                return None

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Special tokens that a parser must see in the text."""
        texts = _SPECIAL_TEXTS.get(self.tools, ())
        tags = self.tags
        return texts if tags is None else (*texts, tags.open, tags.close)

    def tool_parser(self, numbers: CallNumbers, tool_names: Collection[str]) -> ToolCallParser | None:
        """A parser for one answer of a request with these tools."""
        match self.tools:
            case ToolFormat.HERMES:
                return HermesParser(numbers)
            case ToolFormat.MISTRAL:
                return MistralParser(numbers)
            case ToolFormat.LLAMA3:
                return Llama3Parser(numbers, tool_names)
            case ToolFormat.JSON:
                return PlainJsonParser(numbers, tool_names)
            case _:
                return None

    def calls_grammar(
        self, functions: Sequence[dict[str, Any]], *, several: bool, opened: bool, special: SpecialToken
    ) -> Grammar:
        """Of an answer that is calls of ``functions`` and nothing else; ``opened`` as in ``ReasoningSplitter``.

        Raises:
            RequestError: calls are not read from this model's answers.
        """
        tags = self.tags
        thought = None if tags is None else grammar.Thought(tags, opened)
        return grammar.calls_grammar(self._form(special), functions, several=several, thought=thought, special=special)

    @property
    def plain_form(self) -> grammar.CallForm | None:
        """How calls are written where a template cannot write them; None if they are not read either."""
        return None if self.tools is ToolFormat.NONE else self._form(lambda _: None)

    def _form(self, special: SpecialToken) -> grammar.CallForm:
        match self.tools:
            case ToolFormat.HERMES:
                return grammar.HERMES
            case ToolFormat.MISTRAL:
                return grammar.MISTRAL_LIST if special("[ARGS]") is None else grammar.MISTRAL_NAMED
            case ToolFormat.LLAMA3:
                return grammar.LLAMA3
            case ToolFormat.JSON:
                return grammar.PLAIN_JSON
            case _:
                raise RequestError(
                    "calls are not read here (--tool-parser none)", field="tool_choice", remedy='send "auto" or "none"'
                )


_SPECIAL_TEXTS = {
    ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
    ToolFormat.LLAMA3: ("<|python_tag|>",),
    ToolFormat.MISTRAL: ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
}


def choose_format(template: str, knows_token: Callable[[str], bool], config: TextConfig) -> AnswerFormat:
    """The formats of a model with this chat template; ``knows_token``: whether its vocabulary has a token."""
    tools, why_tools = _choose_tools(template, knows_token, config.tool_parser)
    reasoning, why_reasoning = _choose_reasoning(template, knows_token, config.reasoning_parser)
    return AnswerFormat(tools, reasoning, f"tools: {why_tools}; reasoning: {why_reasoning}")


def _choose_tools(template: str, knows_token: Callable[[str], bool], wanted: ToolFormat) -> tuple[ToolFormat, str]:
    if wanted is not ToolFormat.AUTO:
        return wanted, "as configured"
    signs = (
        ("[TOOL_CALLS]", ToolFormat.MISTRAL),
        ("<tool_call>", ToolFormat.HERMES),
        ("<|python_tag|>", ToolFormat.LLAMA3),
    )
    for sign, found in signs:
        if sign in template:
            return found, f"the template has {sign}"
    if "<|start_header_id|>" in template:
        return ToolFormat.LLAMA3, "the template has <|start_header_id|>"
    for sign, found in signs:
        if knows_token(sign):
            return found, f"the vocabulary has {sign}"
    return ToolFormat.JSON, "neither the template nor the vocabulary has a mark for calls"


def _choose_reasoning(
    template: str, knows_token: Callable[[str], bool], wanted: ReasoningFormat
) -> tuple[ReasoningFormat, str]:
    if wanted is not ReasoningFormat.AUTO:
        return wanted, "as configured"
    for sign, found in (("[THINK]", ReasoningFormat.MISTRAL), ("<think>", ReasoningFormat.THINK)):
        if sign in template:
            return found, f"the template has {sign}"
        if knows_token(sign):
            return found, f"the vocabulary has {sign}"
    return ReasoningFormat.NONE, "neither the template nor the vocabulary has a tag for it"
