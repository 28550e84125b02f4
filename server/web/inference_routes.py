"""``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from .answers import ChatCompletion, TextCompletion
from .bodies import ChatBody, CompletionBody
from .metrics import HttpMetrics
from .openapi import describe_answer, describe_body
from .parts import WebParts
from .tenant import Tenant
from .turn_endpoint import CHAT, COMPLETIONS, TurnEndpoint


def inference_routes(parts: WebParts, metrics: HttpMetrics) -> APIRouter:
    """The routes that run turns."""
    router = APIRouter(tags=["inference"])
    chat = TurnEndpoint(parts, metrics, CHAT)
    completions = TurnEndpoint(parts, metrics, COMPLETIONS)

    @router.post(
        "/v1/chat/completions",
        openapi_extra=describe_body(ChatBody),
        responses=describe_answer(ChatCompletion, streamed=True),
        response_class=Response,
    )
    async def chat_completions(request: Request, tenant: Tenant) -> Response:
        """Answer a conversation. Later requests of the same conversation reuse its exact tokens and their KV."""
        return await chat.answer(request, tenant)

    @router.post(
        "/v1/completions",
        openapi_extra=describe_body(CompletionBody),
        responses=describe_answer(TextCompletion, streamed=True),
        response_class=Response,
    )
    async def text_completions(request: Request, tenant: Tenant) -> Response:
        """Continue a text or a list of token ids, without a chat template."""
        return await completions.answer(request, tenant)

    return router
