"""What a client calls itself or its conversation: agents send an id of their session along, each under a name of its
own, in a header or in the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.datastructures import Headers

from ...sessions.manager.requests import CompletionRequest, MessagesInput
from ...sessions.manager.transport_lines import neutralised
from .header_text import header_text

SESSION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-session-affinity",
    "x-correlation-id",
    "x-dynamo-session-id",
)
PARENT_HEADERS = ("x-codex-parent-thread-id", "x-parent-session-id", "x-dynamo-parent-session-id")
AGENT_HEADER = "x-claude-code-agent-id"  # several agents of one session are several conversations
PARENT_AGENT_HEADER = "x-claude-code-parent-agent-id"
BODY_FIELDS = ("prompt_cache_key", "metadata.user_id", "user", "safety_identifier")
NEUTRALISED_HEADER = "x-sessile-neutralised"
_MAX_CHARACTERS = 200


def told_headers(model: str, ignored: Sequence[str], turn: CompletionRequest | None = None) -> dict[str, str]:
    """What answers in all APIs' shapes say: who answers, which fields had no effect, and what of ``turn`` was
    changed. A field is named once, however many items of a list have it: clients refuse headers of some KiB."""
    headers = {"x-sessile-model": header_text(model), **({} if turn is None else neutralised_header(turn))}
    if ignored:
        headers["x-sessile-ignored"] = ", ".join(dict.fromkeys(ignored))
    return headers


def neutralised_header(request: CompletionRequest) -> dict[str, str]:
    """The header that tells of transport lines which are left out of the prompt."""
    names = neutralised(request.prompt.messages).names if isinstance(request.prompt, MessagesInput) else ()
    return {NEUTRALISED_HEADER: ", ".join(names)} if names else {}


def client_session(headers: Headers) -> str:
    """The first id that a header has; empty if there is none, or if it is not a name."""
    named = _first(headers, SESSION_HEADERS)
    agent = headers.get(AGENT_HEADER, "")
    return _usable(f"{named}/{agent}" if named and agent else named)


def lineage_of(headers: Headers, named: str) -> tuple[str, ...]:
    """The conversations of which a new one is a branch, the nearest first: those that are ``named`` the same (see
    ``client_session``), and its parent."""
    return tuple(name for name in (named, _parent(headers)) if name)


def _parent(headers: Headers) -> str:
    """The conversation that this one was started from: another session, or another agent of the same one."""
    named = _first(headers, PARENT_HEADERS)
    if named or not headers.get(AGENT_HEADER):
        return _usable(named)
    session, agent = _first(headers, SESSION_HEADERS), headers.get(PARENT_AGENT_HEADER)
    return _usable(f"{session}/{agent}" if agent else session)


def client_in(body: msgspec.Struct) -> str:
    """The first of ``BODY_FIELDS`` that is there. They often name a user: of several conversations, that is."""
    for field in BODY_FIELDS:
        name, _, inner = field.partition(".")
        value: Any = getattr(body, name, None)
        if inner:
            value = value.get(inner) if isinstance(value, Mapping) else None
        if isinstance(value, str) and (usable := _usable(value)):
            return f"{field}:{usable}"
    return ""


def _first(headers: Headers, names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")


def _usable(name: str) -> str:
    return name if len(name) <= _MAX_CHARACTERS and name.isprintable() else ""
