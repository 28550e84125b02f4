"""Runs lines of batches on the very endpoints that live requests go to."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Message

from ....sessions.batches.batch import BatchUsage
from ....sessions.batches.worker import LATER, LineAnswer
from ....sessions.errors import SessileError
from ..caller import Caller, Lane
from ..errors import error_body, http_status_of, internal_error_body
from ..metrics import HttpMetrics
from ..parts import WebParts
from ..responses_api.routes import ResponsesEndpoint
from ..turn_endpoint import CHAT, COMPLETIONS, TurnEndpoint

logger = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class _Answered(msgspec.Struct, frozen=True):
    """What is read of an answer."""

    usage: dict[str, Any]


_decode_answered = msgspec.json.Decoder(_Answered).decode


class _Endpoint(Protocol):
    async def begin(self, sent: bytes, caller: Caller) -> Response: ...


class LineRunner:
    """See ``sessions.batches.worker.RunLine``. Its turns are not among the metrics of live requests."""

    def __init__(self, parts: WebParts) -> None:
        metrics = HttpMetrics(parts)
        self._endpoints: dict[str, _Endpoint] = {
            "/v1/chat/completions": TurnEndpoint(parts, metrics, CHAT),
            "/v1/completions": TurnEndpoint(parts, metrics, COMPLETIONS),
            "/v1/responses": ResponsesEndpoint(parts, metrics),
        }

    async def __call__(self, tenant: str, endpoint: str, body: bytes) -> LineAnswer:
        try:
            answer = await self._endpoints[endpoint].begin(body, Caller(tenant, lane=Lane.OFFLINE))
            sent = await _collected(answer)
        except LATER:
            raise
        except SessileError as error:
            return LineAnswer(status=http_status_of(error)[0], request_id="", body=_encode(error_body(error)))
        except Exception:
            logger.exception("a line of a batch failed")
            return LineAnswer(status=500, request_id="", body=_encode(internal_error_body()))
        return LineAnswer(status=200, request_id=answer.headers["x-request-id"], body=sent, usage=_usage_in(sent))


async def _collected(answer: Response) -> bytes:
    """The body of an answer that is sent to nobody. Raises what the answer raises."""
    pieces: list[bytes] = []

    async def keep(message: Message) -> None:
        pieces.append(message.get("body", b""))

    await answer({"type": "http"}, _stay, keep)
    return b"".join(pieces)


async def _stay() -> Message:
    """A client that never goes away."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


def _usage_in(sent: bytes) -> BatchUsage:
    """The usage that an answer tells, in the words of either API."""
    usage = _decode_answered(sent).usage
    of_input = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    of_output = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    return BatchUsage(
        input_tokens=usage.get("prompt_tokens", usage.get("input_tokens", 0)),
        cached_tokens=of_input.get("cached_tokens", 0),
        output_tokens=usage.get("completion_tokens", usage.get("output_tokens", 0)),
        reasoning_tokens=of_output.get("reasoning_tokens", 0),
    )
