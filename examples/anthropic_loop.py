"""A loop with a tool on Anthropic's own client: ``python examples/anthropic_loop.py [URL]``."""

from __future__ import annotations

import sys

from anthropic import Anthropic
from anthropic.types import Message, MessageParam, ToolParam, ToolResultBlockParam

FILES = {"notes.txt": "The build broke on Tuesday.", "todo.txt": "Mend the build."}
READ_FILE: ToolParam = {
    "name": "read_file",
    "description": "Read a file of the project.",
    "input_schema": {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": sorted(FILES)}},
        "required": ["name"],
        "additionalProperties": False,
    },
}
SYSTEM = "You answer questions about a project in one short sentence."


def ask(client: Anthropic, messages: list[MessageParam]) -> Message:
    """One turn. A small model would not call a tool by itself: it must where there is no result yet."""
    asked = isinstance(messages[-1]["content"], str)
    with client.messages.stream(
        model="default",
        max_tokens=60,
        system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        tools=[READ_FILE],
        tool_choice={"type": "any", "disable_parallel_tool_use": True} if asked else {"type": "none"},
        messages=messages,
        extra_body={"temperature": 0},
    ) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    usage = answer.usage
    read, created = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    print(f"{usage.input_tokens + read + created} prompt tokens, {read} from the cache")
    return answer


def main(url: str) -> None:
    """Two questions, the second one in the conversation of the first."""
    client = Anthropic(base_url=url, api_key="none")
    messages: list[MessageParam] = []
    for question in ("Read notes.txt and tell me on which day the build broke.", "And what is there to do?"):
        messages.append({"role": "user", "content": question})
        answer = ask(client, messages)
        while calls := [block for block in answer.content if block.type == "tool_use"]:
            results: list[ToolResultBlockParam] = []
            for call in calls:
                result = FILES[str(call.input["name"])]
                print(f"  {call.name}({call.input}) -> {result!r}")
                results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
            messages.append({"role": "user", "content": results})
            answer = ask(client, messages)
        print("answer:", "".join(block.text for block in answer.content if block.type == "text"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
