"""Where text becomes part of a prompt."""

from __future__ import annotations

import enum
import re

from . import ir

SYSTEM_ROLES = {"system", "developer", "SYSTEM"}
SYSTEM_KEYWORDS = {
    "system",
    "system_prompt",
    "system_instruction",
    "system_instructions",
    "system_message",
    "instructions",
    "preamble",
    "backstory",
    "systemPrompt",
    "systemInstruction",
    "systemMessage",
    "developer_message",
}
TOOL_KEYWORDS = {"tools", "functions", "tool_schemas", "toolConfig", "tool_config"}
MESSAGE_KEYWORDS = {"messages", "input", "contents", "chat_history", "history", "message_history"}
KEY_KEYWORDS = {"prompt_cache_key", "promptCacheKey", "cache_salt", "cacheSalt"}
SYSTEM_CALLS = re.compile(
    r"(?:^|\.|^new )(?:SystemMessage|SystemPromptPart|SystemMessagePromptTemplate\.from_template|"
    r"ChatMessage\.from_system|Message\.system|system_message|SystemChatMessage|DeveloperMessage)$"
)
LLM_CALL = re.compile(
    r"(?:^|\.)(?:create|acreate|parse|stream|chat|achat|completions?|acompletion|generate|"
    r"generateText|streamText|generateObject|streamObject|agenerate|"
    r"generate_content|generateContent|invoke|ainvoke|complete|acomplete|converse|converseStream|ask|"
    r"predict|send_message|sendMessage|respond|call_llm|callLLM|query_llm|run)$"
)
POSITIONAL_CALL = re.compile(
    r"(?:^|\.)a?(?:invoke|stream|chat|complete|generate|predict|generate_content|generateContent|batch)$"
)
SIDE_CALL = re.compile(r"summar|title|classif|judge|condens", re.IGNORECASE)  # these read a conversation, once
SYSTEM_NAME = re.compile(
    r"^_?(?:\w*_)?(?:system|sys|developer)_?(?:prompt|message|instructions?|text|msg|content)s?$|"
    r"^(?:build|get|make|create|render|compose|format)?_?[sS]ystem_?(?:Prompt|Message|Instructions?|"
    r"prompt|message|instructions?)\w*$"
)
TOOL_KEYS = (
    {"name", "description", "input_schema"},
    {"name", "description", "parameters"},
    {"name", "description", "inputSchema"},
)
SYSTEM_FUNCTION = re.compile(r"^_?(?:get_?|build_?|make_?)?[iI]nstructions$")  # of an agent
_CONTENT_KEYS = ("content", "parts", "text")


FILLS = re.compile(
    r"(?:^|\.)(?:partial|a?invoke|a?stream|a?batch|format|a?format_messages|a?format_prompt|formatMessages|"
    r"formatPromptValue|run|arun|call|predict)$"
)
_PLACEHOLDER = re.compile(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})|\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def placeholders(text: str) -> set[str]:
    """Names of the placeholders of a prompt template: `{now}`, `{{ now }}`."""
    return {name for names in _PLACEHOLDER.findall(text) for name in names if name}


def is_constructor(name: str) -> bool:
    """`Agent(…)`, `new Agent(…)`: makes an object that keeps what it is given."""
    return name.startswith("new ") or name.rsplit(".", 1)[-1][:1].isupper()


class Sink(enum.Enum):
    """A part of a prompt."""

    SYSTEM = "the system text"
    TOOLS = "the tools"
    TOOL_LIST = "the list of tools"
    USER_TURN = "a user message"
    ANSWER = "an example's answer"
    MESSAGES = "the messages"
    ARGUMENTS = "the arguments of a replayed call"
    CACHE_KEY = "the cache key"
    IMAGE = "an attachment"


def role_of(node: ir.DictExpr) -> str | None:
    """The literal role of a message, or None."""
    return role_named(node.get("role"))


def role_named(role: ir.Node | None) -> str | None:
    """The role that a literal or a member of an enum names, or None."""
    if isinstance(role, ir.Const) and role.text:
        return role.text
    if isinstance(role, ir.Attr) and role.name.lower() in ("system", "developer", "user", "assistant", "tool"):
        return role.name.lower()
    return None


def content_of(node: ir.DictExpr) -> ir.Node | None:
    """The content of a message."""
    return next((value for key in _CONTENT_KEYS if (value := node.get(key)) is not None), None)


def is_tool_definition(node: ir.DictExpr) -> bool:
    """A dict with the keys of a tool or a function of a tool."""
    keys = {key for key, _ in node.items if key}
    return any(wanted <= keys for wanted in TOOL_KEYS)
