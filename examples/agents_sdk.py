"""An agent of the OpenAI Agents SDK, over the Responses API: ``python examples/agents_sdk.py [URL]``."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

FILES = {"notes.txt": "The build broke on Tuesday.", "todo.txt": "Mend the build."}
QUESTIONS = ("Read notes.txt and tell me on which day the build broke.", "And what is there to do?")


@function_tool
def read_file(name: Literal["notes.txt", "todo.txt"]) -> str:
    """Read a file of the project."""
    return FILES[name]


def build(client: AsyncOpenAI) -> Agent:
    """An agent that must call its tool first; the SDK then lets it answer in words."""
    return Agent(
        name="project",
        instructions="You answer questions about a project in one short sentence.",
        tools=[read_file],
        model=OpenAIResponsesModel("default", client),
        model_settings=ModelSettings(temperature=0, max_tokens=400, tool_choice="required", parallel_tool_calls=False),
    )


async def main(url: str) -> None:
    """Two questions: the server keeps the first conversation, the second names its last response."""
    set_tracing_disabled(True)  # nothing is sent anywhere else
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        agent, previous = build(client), None
        for question in QUESTIONS:
            result = await Runner.run(agent, question, previous_response_id=previous)
            previous = result.last_response_id
            for response in result.raw_responses:
                usage = response.usage
                cached = usage.input_tokens_details.cached_tokens
                print(f"{usage.input_tokens} prompt tokens, {cached} from the cache")
            print("answer:", result.final_output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
