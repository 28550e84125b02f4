"""What the client's calls may be given, and the values that become of it."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Sequence
from typing import TypedDict

import msgspec

from ...sessions.errors import RequestError
from ...sessions.keeping import PersistencePolicy
from ...sessions.manager.requests import MessagesInput, TextInput, TokenIdsInput, ToolChoice, TurnInput
from ...sessions.messages import Message, Role, Tool
from ...sessions.session import AtToken, AtTurn, Point
from ..engine.messages import Priority
from ..engine.sampling_params import SamplingParams


class InputOptions(TypedDict, total=False):
    """What to add to the log: one of these."""

    messages: Sequence[Message] | str
    text: str
    token_ids: Sequence[int]


class ChangeOptions(TypedDict, total=False):
    """``request_id``: the same one twice gets the same answer; left out, each call has its own, kept over its retries.

    ``timeout_s`` bounds one attempt.
    """

    request_id: str
    timeout_s: float | None


class TurnOptions(ChangeOptions, total=False):
    """How to run a turn."""

    sampling: SamplingParams
    tool_choice: ToolChoice
    stop: Sequence[str]
    priority: Priority


class GenerateOptions(InputOptions, TurnOptions, total=False):
    """Input, and how to run the turn. Without input the log is answered as it is."""


class AppendOptions(InputOptions, ChangeOptions, total=False):
    """Input, and how to send it."""

    priority: Priority


class OpenOptions(ChangeOptions, total=False):
    """What a session is opened with."""

    system: str | None
    tools: Sequence[Tool]
    model: str | None
    persistence: PersistencePolicy | None


def request_id_of(options: ChangeOptions) -> str:
    """The request's id, or a new one."""
    return options.get("request_id") or uuid.uuid4().hex


def seeded(sampling: SamplingParams) -> SamplingParams:
    """With a seed, so that a turn that breaks off can be run again and say the same."""
    if sampling.seed is not None or sampling.temperature == 0.0:
        return sampling
    return msgspec.structs.replace(sampling, seed=secrets.randbits(63))


def input_of(options: InputOptions) -> TurnInput | None:
    """The input that is given; one text is what the user says."""
    given = [name for name in ("messages", "text", "token_ids") if options.get(name) is not None]
    if len(given) > 1:
        raise RequestError(f"both {given[0]} and {given[1]} are given", field="input", remedy="give one of them")
    messages = options.get("messages")
    if isinstance(messages, str):
        return MessagesInput((Message(role=Role.USER, content=messages),))
    if messages is not None:
        return MessagesInput(tuple(messages))
    if (text := options.get("text")) is not None:
        return TextInput(text)
    if (token_ids := options.get("token_ids")) is not None:
        return TokenIdsInput(tuple(token_ids))
    return None


def point_of(turn: int | None, token: int | None) -> Point | None:
    """The point that is named; None for none."""
    if turn is not None and token is not None:
        raise RequestError("both a turn and a token are named", field="at", remedy="name one of them")
    if turn is not None:
        return AtTurn(turn)
    return None if token is None else AtToken(token)
