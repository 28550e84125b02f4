"""Whether tool calls name a tool and have arguments that fit it, and whether JSON that was asked for is JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ..driver.ask import Ask, Driver, Sampling
from ..driver.observation import Observation
from ..load.attempts import RETRIES, attempt
from ..workload.plan import Message, ToolCall

_IN_TEXT = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of ``asked``. ``called``: a tool was called; ``json``: the arguments (or the answer) are a JSON object;
    ``fitting``: of the right tool's schema (or with the keys that were asked for)."""

    asked: int
    called: float
    json: float
    fitting: float


def _tool(name: str, says: str, **parameters: str) -> dict[str, object]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": says, "parameters": schema}}


TOOLS = (
    _tool("read_file", "Read lines of a file.", path="string", start="integer", end="integer"),
    _tool("run", "Run a shell command.", command="string", timeout_s="number"),
    _tool("search", "Search the repository.", pattern="string", ignore_case="boolean"),
)
TOOL_TASKS = (
    "Show me lines 10 to 20 of setup.py.",
    "Run the tests with `pytest -q`, for at most 60 seconds.",
    "Find all places that say TODO, in upper or lower case.",
    "Read the first 50 lines of README.md.",
    "List the files of the folder src with ls.",
    "Where is the function parse_config defined?",
)
JSON_TASKS = (
    ("Give the capital of France.", ("country", "capital")),
    ("Describe a book of your choice.", ("title", "author", "year")),
    ("Add 17 and 25.", ("a", "b", "sum")),
    ("Name a colour and its hex code.", ("name", "hex")),
)


async def tool_calls(driver: Driver, max_tokens: int) -> Validity:
    """Asks for the tasks with the tools. Raises TargetError."""
    calls = []
    for task in TOOL_TASKS:
        seen = await _ask(driver, task, TOOLS, max_tokens)
        calls.append(seen.tool_calls or calls_in_text(seen.text))
    return judge_calls(calls, TOOLS)


async def json_answers(driver: Driver, max_tokens: int) -> Validity:
    """Asks for JSON objects with certain keys. Raises TargetError."""
    objects, fitting = 0, 0
    for task, keys in JSON_TASKS:
        said = f"{task} Answer with one JSON object with the keys {', '.join(keys)}, and nothing else."
        found = json_object((await _ask(driver, said, (), max_tokens)).text)
        objects += found is not None
        fitting += found is not None and set(keys) <= found.keys()
    asked = len(JSON_TASKS)
    return Validity(asked=asked, called=1.0, json=objects / asked, fitting=fitting / asked)


def judge_calls(answers: Sequence[Sequence[ToolCall]], tools: Sequence[dict[str, object]]) -> Validity:
    """Of the calls of each answer; an answer is good when all its calls are, and there is one."""
    parsed = [[_arguments(call) for call in calls] for calls in answers]
    asked = len(answers)
    fits = [
        bool(calls)
        and all(a is not None and fits_tool(call.name, a, tools) for call, a in zip(calls, args, strict=True))
        for calls, args in zip(answers, parsed, strict=True)
    ]
    return Validity(
        asked=asked,
        called=sum(bool(calls) for calls in answers) / asked,
        json=sum(bool(args) and None not in args for args in parsed) / asked,
        fitting=sum(fits) / asked,
    )


def fits_tool(name: str, arguments: dict[str, Any], tools: Sequence[dict[str, object]]) -> bool:
    """Whether there is such a tool and the arguments have its required keys, no others, and the right types."""
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, dict) or function.get("name") != name:
            continue
        schema = function.get("parameters") or {}
        properties = schema.get("properties") or {}
        if not set(schema.get("required") or ()) <= arguments.keys() or not arguments.keys() <= properties.keys():
            return False
        return all(_is_of(value, properties[key].get("type")) for key, value in arguments.items())
    return False


def calls_in_text(text: str) -> list[ToolCall]:
    """Calls written as ``<tool_call>{"name", "arguments"}</tool_call>``, where the server does not find them."""
    found = []
    for number, piece in enumerate(_IN_TEXT.findall(text)):
        row = json_object(piece) or {}
        arguments = row.get("arguments", row.get("parameters"))
        encoded = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        found.append(ToolCall(str(number), str(row.get("name", "")), encoded))
    return found


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, within a fence or not; None when it is none."""
    text = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    return json_object(call.arguments)


def _is_of(value: object, kind: object) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    return not isinstance(kind, str) or isinstance(value, _TYPES.get(kind, (object,)))


async def _ask(driver: Driver, said: str, tools: tuple[dict[str, object], ...], max_tokens: int) -> Observation:
    conversation = driver.conversation("validity")
    message = (Message("user", said),)
    seen = Observation()
    sampling = Sampling(max_tokens=max_tokens, exact_length=False)
    try:
        ask = Ask(index=0, conversation=message, new=message, tools=tools, sampling=sampling)
        await attempt(conversation, ask, seen, RETRIES)
    finally:
        await conversation.close()
    return seen
