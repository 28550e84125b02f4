"""A chain of responses on a real server that is killed in its middle, beside one that nothing disturbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from served_llama import make_served_llama
from server_process import ServerProcess

pytestmark = pytest.mark.timeout(300)
FLAGS = ("--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "64MiB")
TURNS = 10
READ: dict[str, Any] = {
    "type": "function",
    "name": "read",
    "description": "Reads a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"enum": ["a.py", "b.py", "notes/c.md"]}, "line": {"type": "integer", "maximum": 99}},
        "required": ["path", "line"],
        "additionalProperties": False,
    },
}


def chain(client: openai.OpenAI, before_turn: Callable[[int], None]) -> list[tuple[str, str, int]]:
    """Ten turns, each a call; its name and arguments, and the tokens of its prompt."""
    said: list[tuple[str, str, int]] = []
    previous, sent = None, [{"role": "user", "content": "Read what you need."}]
    for turn in range(TURNS):
        before_turn(turn)
        response = client.responses.create(
            model="default",
            input=sent,  # type: ignore[arg-type]
            previous_response_id=previous,
            tools=[READ],  # type: ignore[list-item]
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_output_tokens=200,
        )
        (call,) = [item for item in response.output if item.type == "function_call"]
        assert response.usage is not None
        said.append((call.name, call.arguments, response.usage.input_tokens))
        previous, sent = (
            response.id,
            [{"type": "function_call_output", "call_id": call.call_id, "output": f"line {turn}"}],
        )
    return said


def test_vllm_43244_ten_turns_with_calls_survive_two_kills_bit_equal(tmp_path: Path) -> None:
    model = make_served_llama(tmp_path / "tiny-llama")
    said = []
    for name, killed_before in (("undisturbed", ()), ("killed", (4, 8))):
        with ServerProcess(tmp_path / name, "--model", str(model), *FLAGS) as server:

            def disturb(turn: int, server: ServerProcess = server, when: tuple[int, ...] = killed_before) -> None:
                if turn in when:
                    server.kill()
                    server.start()

            with openai.OpenAI(api_key="any", base_url=f"{server.url}/v1") as client:
                said.append(chain(client, disturb))
    assert said[0] == said[1]
    assert [tokens for _, _, tokens in said[0]] == sorted({tokens for _, _, tokens in said[0]}), "prompts only grow"
