"""What a conversation is known by is reckoned from what it says, by nobody's memory."""

from __future__ import annotations

import os
import subprocess
import sys

NAMES = """
from sessile.sessions.manager.replay import ConversationKeys, client_key
from sessile.sessions.messages import Message, Role, Tool
tools = [Tool(name="read", description="Reads.", parameters={"type": "object", "properties": {"b": {}, "a": {}}})]
messages = [Message(role=Role.SYSTEM, content="s"), Message(role=Role.USER, content="u"),
            Message(role=Role.ASSISTANT, content="a")]
keys = ConversationKeys("tenant", tools, {"b": 1, "a": 2}).of(messages)
print([key.hex() for key in (*keys, client_key(keys[-1], "client"))])
"""


def names(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", NAMES], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_dynamo_11035_a_conversation_has_the_same_name_in_every_process() -> None:
    """A map of sessions in each process's memory scattered them; a hash of what is said needs no map."""
    first = names("1")
    assert len(set(first.split(", "))) == 4
    assert first == names("2")
