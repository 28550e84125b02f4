"""Answers by request id: the same request again gets the same answer, another request under its id an error."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from ...server.engine.messages import TokenLogprobs
from ..errors import RequestError
from ..store import StoredAnswer
from .requests import AppendRequest, GenerateRequest, ImportSession, Mutation, OpenSession
from .turn import TurnResult
from .turn_events import TextDelta, TurnDelta, TurnEvent, TurnFinished

_Answer = TypeVar("_Answer")


_Identified = OpenSession | ImportSession | Mutation


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A finished turn, as it is told again."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finished: TurnFinished
    deltas: tuple[TurnDelta, ...] = ()  # without tokens; empty where there was nothing but text


def scope_of(request: _Identified) -> str:
    """Within what a request id is unique: the session, or the tenant while there is no session yet."""
    return f"tenant:{request.tenant}" if isinstance(request, OpenSession | ImportSession) else request.session_id


def digest_of(request: _Identified) -> bytes:
    """Identifies everything that was asked for; how long the caller waits is no part of it."""
    if isinstance(request, GenerateRequest | AppendRequest):
        request = msgspec.structs.replace(request, deadline_s=None)
    plain = msgspec.to_builtins(request, str_keys=True)  # token ids may be keys
    body = msgspec.json.encode(plain, order="deterministic")
    return hashlib.blake2b(body, digest_size=16, person=type(request).__name__.encode()[:16]).digest()


def stored_answer(request: _Identified, answer: msgspec.Struct, *, now: float) -> StoredAnswer | None:
    """What to remember of an answer; None for a request without an id."""
    if request.request_id is None:
        return None
    return StoredAnswer(
        scope=scope_of(request),
        request_id=request.request_id,
        request_digest=digest_of(request),
        answer=msgspec.msgpack.encode(answer),
        created_at=now,
    )


def answer_again(stored: StoredAnswer, request: _Identified, answer_type: type[_Answer]) -> _Answer:
    """The answer given before.

    Raises:
        RequestError: it answered another request.
    """
    if stored.request_digest != digest_of(request):
        raise RequestError(
            f"request id {stored.request_id!r} was used for another request",
            field="request_id",
            remedy="use a new id for each new request, and the same one only to send the same request again",
        )
    return msgspec.msgpack.decode(stored.answer, type=answer_type)


def turn_answer(result: TurnResult, finished: TurnFinished) -> TurnAnswer:
    """What to remember of a turn."""
    return TurnAnswer(
        text=result.message.content,
        token_ids=result.token_ids,
        logprobs=result.logprobs,
        finished=finished,
        deltas=result.deltas,
    )


def turn_again(stored: StoredAnswer, request: GenerateRequest) -> tuple[TurnEvent, ...]:
    """The events of a turn that was finished before: all its tokens at once, and its end.

    Raises:
        RequestError: the answer belongs to another request.
    """
    answer = answer_again(stored, request, TurnAnswer)
    text = "" if answer.deltas else answer.text
    tokens = TextDelta(text=text, token_ids=answer.token_ids, logprobs=answer.logprobs)
    return tokens, *answer.deltas, msgspec.structs.replace(answer.finished, replayed=True)
