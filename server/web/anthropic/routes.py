"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..caller import Caller
from ..decode import BodyDecoder, read_body
from ..foreign_tools import foreign_tools
from ..identity import told_headers
from ..json_answer import json_answer
from ..metrics import HttpMetrics
from ..openapi import describe_answer, describe_body
from ..parts import WebParts
from ..tenant import Tenant
from ..turn_answer import StreamedTurn, WholeTurn
from .answers import MessageAnswer, MessageErrorAnswer, TokenCount
from .bodies import CountTokensBody, MessagesBody
from .errors import PATH, new_request_id
from .requests import (
    OWN_TOOLS,
    TOOL_REMEDY,
    conversation_request,
    ignored_fields,
    messages_request,
    retention_of,
    sent_names,
    shows_thinking,
)
from .writer import MessageHead, MessageWriter


def messages_routes(parts: WebParts, metrics: HttpMetrics) -> APIRouter:
    """Anthropic's routes."""
    router = APIRouter(tags=["messages"])
    foreign = foreign_tools(OWN_TOOLS, TOOL_REMEDY)
    decoder, count_decoder = BodyDecoder(MessagesBody, foreign), BodyDecoder(CountTokensBody, foreign)

    @router.post(
        PATH,
        openapi_extra=describe_body(MessagesBody),
        responses=describe_answer(MessageAnswer, streamed=True, error=MessageErrorAnswer),
        response_class=Response,
    )
    async def messages(request: Request, tenant: Tenant) -> Response:
        """Answer a conversation, in Anthropic's shapes."""
        parts.check_admission()
        sent = await read_body(request, parts.http.max_body_bytes)
        body: MessagesBody = decoder.decode(sent)
        parts.served.check(body.model)
        turn = Caller.of(request, tenant).turn(messages_request(body, tenant), sent, body)
        request_id = new_request_id()
        head = MessageHead.new(
            parts.served.name,
            parts.engine.info.fingerprint,
            shows_thinking=shows_thinking(body),
            cache_control=retention_of(body),
            request_id=request_id,
        )
        ignored = _ignored(request, ignored_fields(body))
        headers = {"request-id": request_id, **told_headers(head.model, ignored, turn)}
        events = sent_names(body).told_of(parts.turns.complete(turn))
        writer, meter = MessageWriter(head), metrics.start_turn("messages")
        kind = StreamedTurn if body.stream else WholeTurn
        return kind(events, writer, meter, headers, parts.http.ping_s)

    @router.post(
        f"{PATH}/count_tokens",
        openapi_extra=describe_body(CountTokensBody),
        responses=describe_answer(TokenCount, error=MessageErrorAnswer),
        response_class=Response,
    )
    async def count_tokens(request: Request, tenant: Tenant) -> Response:
        """Count the tokens of a conversation's prompt, without an answer."""
        body: CountTokensBody = count_decoder.decode(await read_body(request, parts.http.max_body_bytes))
        parts.served.check(body.model)
        with sent_names(body).told():
            counted = await parts.turns.count_tokens(conversation_request(body, tenant))
        ignored = _ignored(request, ignored_fields(body))
        headers = {"request-id": new_request_id(), **told_headers(parts.served.name, ignored)}
        return json_answer(TokenCount(input_tokens=counted), headers=headers)

    return router


def _ignored(request: Request, fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields without effect, and the header that asks for what is not in Anthropic's API proper."""
    return (*fields, "anthropic-beta") if "anthropic-beta" in request.headers else fields
