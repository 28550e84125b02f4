"""What a client calls its conversation: agents send an id of their session along, each under a name of its own."""

from __future__ import annotations

from starlette.datastructures import Headers

SESSION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-session-affinity",
    "x-correlation-id",
    "x-dynamo-session-id",
)
AGENT_HEADER = "x-claude-code-agent-id"  # several agents of one session are several conversations
_MAX_CHARACTERS = 200


def client_session(headers: Headers) -> str:
    """The first id that is there; empty if there is none, or if it is not a name."""
    named = next((headers[name] for name in SESSION_HEADERS if headers.get(name)), "")
    agent = headers.get(AGENT_HEADER, "")
    whole = f"{named}/{agent}" if named and agent else named
    return whole if len(whole) <= _MAX_CHARACTERS and whole.isprintable() else ""
