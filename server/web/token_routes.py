"""``/tokenize`` and ``/detokenize``, as vLLM's users know them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...sessions.errors import RequestError
from ...sessions.manager.requests import CompletionRequest, TextInput
from .bodies import ChatBody, first_refused_value
from .decode import BodyDecoder, read_body
from .json_answer import json_answer
from .openapi import describe_answer, describe_body
from .parts import WebParts
from .tenant import Tenant
from .token_bodies import DetokenizeBody, DetokenizedText, TokenizeBody, Tokens
from .turn_requests import chat_request


def token_routes(parts: WebParts) -> APIRouter:
    """The routes that only tokenise."""
    router = APIRouter(tags=["tokens"])
    tokenize_body, detokenize_body = BodyDecoder(TokenizeBody), BodyDecoder(DetokenizeBody)

    @router.post(
        "/tokenize",
        openapi_extra=describe_body(TokenizeBody),
        responses=describe_answer(Tokens),
        response_class=Response,
    )
    async def tokenize(request: Request, tenant: Tenant) -> Response:
        """The tokens of a text, or of a conversation as the chat template writes it; nothing is run."""
        body: TokenizeBody = tokenize_body.decode(await read_body(request, parts.http.max_body_bytes))
        parts.served.check(body.model)
        tokens = await parts.turns.prompt_tokens(_prompt_of(body, tenant))
        texts = None
        if body.return_token_strs:
            texts = [parts.token_bytes[token].decode("utf-8", "replace") for token in tokens]
        answer = Tokens(
            tokens=tokens, count=len(tokens), max_model_len=parts.engine.info.context_length, token_strs=texts
        )
        return json_answer(answer)

    @router.post(
        "/detokenize",
        openapi_extra=describe_body(DetokenizeBody),
        responses=describe_answer(DetokenizedText),
        response_class=Response,
    )
    async def detokenize(request: Request, tenant: Tenant) -> Response:
        """The text of tokens."""
        body: DetokenizeBody = detokenize_body.decode(await read_body(request, parts.http.max_body_bytes))
        parts.served.check(body.model)
        text = await parts.turns.text_of(body.tokens)
        return json_answer(DetokenizedText(prompt=text))

    return router


def _prompt_of(body: TokenizeBody, tenant: str) -> CompletionRequest:
    refused = first_refused_value(body)
    if refused is not None:
        raise RequestError(f"{refused[0]} can only be true", field=refused[0], remedy="leave it out")
    if (body.prompt is None) == (body.messages is None):
        raise RequestError(
            "one of prompt and messages is needed", field="prompt", remedy="send a text, or a conversation"
        )
    if body.prompt is not None:
        return CompletionRequest(prompt=TextInput(body.prompt), tenant=tenant)
    assert body.messages is not None
    chat = ChatBody(messages=body.messages, tools=body.tools, chat_template_kwargs=body.chat_template_kwargs)
    return chat_request(chat, tenant)
