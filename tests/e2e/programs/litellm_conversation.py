"""A conversation with a tool by litellm, streamed and whole; prints the usage of each turn as a line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

litellm.suppress_debug_info = True

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"enum": ["a.txt", "b.txt"]}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
}


def turn(url: str, messages: list[Any], **fields: Any) -> Any:
    kept: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 40, "seed": 1}
    answer = litellm.completion("openai/default", messages, tools=[TOOL], parallel_tool_calls=False, **kept, **fields)
    if fields.get("stream"):
        answer = litellm.stream_chunk_builder(list(answer), messages=messages)
    usage = answer.usage
    cached = usage.prompt_tokens_details.cached_tokens
    print(json.dumps([usage.prompt_tokens, usage.completion_tokens, cached]))
    messages.append(answer.choices[0].message.model_dump(exclude_none=True))
    return answer.choices[0].message


def main(url: str) -> None:
    messages: list[Any] = [{"role": "system", "content": "You are brief. " * 10}]
    for question in ("Read a file.", "Read another."):
        messages.append({"role": "user", "content": question})
        said = turn(url, messages, tool_choice="required")
        messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "It says: 7."})
        turn(url, messages, tool_choice="none", stream=True, stream_options={"include_usage": True})


if __name__ == "__main__":
    main(sys.argv[1])
