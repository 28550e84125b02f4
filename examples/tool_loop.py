"""An agent's loop with tools, in plain Python: ``python examples/tool_loop.py [HOST:PORT]``."""

from __future__ import annotations

import json
import sys

from sessile.client import SamplingParams, Session, SessionClient, ToolChoice, ToolChoiceMode, ToolWait, Turn

FILES = {"notes.txt": "The build broke on Tuesday.", "todo.txt": "Mend the build."}
READ_FILE = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file of the project.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"enum": sorted(FILES)}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
}
SYSTEM = "You answer questions about a project in one short sentence."
SHORT = SamplingParams(temperature=0, max_tokens=60)


def answer(session: Session, question: str) -> str:
    """Ask, run what the model calls, and go on with the results until it answers in words."""
    must_call = ToolChoice(mode=ToolChoiceMode.REQUIRED, parallel=False)  # a small model would not by itself
    turn = session.generate(messages=question, sampling=SHORT, tool_choice=must_call)
    turn.wait()
    describe(turn)
    while calls := turn.tool_calls:
        (call,) = calls
        session.hint(ToolWait(tool=call.name, p50_s=0.1))  # keeps the session's place until about then
        result = FILES[json.loads(call.arguments)["name"]]
        print(f"  {call.name}({call.arguments}) -> {result!r}")
        in_words = ToolChoice(mode=ToolChoiceMode.NONE)
        turn = session.tool_result(call.id, result, name=call.name, sampling=SHORT, tool_choice=in_words)
        turn.wait()
        describe(turn)
    return turn.text


def describe(turn: Turn) -> None:
    """Say what a turn cost."""
    usage = turn.finished.usage
    print(f"turn {turn.finished.turn}: {usage.prompt_tokens} prompt tokens, {usage.tokens_by_source.computed} computed")


def main(target: str) -> None:
    """One question."""
    with SessionClient(target) as client, client.open(system=SYSTEM, tools=[READ_FILE]) as session:
        print("answer:", answer(session, "Read notes.txt and tell me on which day the build broke."))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
