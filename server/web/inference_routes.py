"""``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...sessions.manager.requests import CompletionRequest
from .answers import ChatCompletion, TextCompletion
from .bodies import ChatBody, CompletionBody
from .choices import StreamedChoices, WholeChoices, merged
from .decode import BodyDecoder, read_body
from .grammar_fields import wanted_grammar
from .identity import neutralised_header, sent_by
from .metrics import HttpMetrics
from .openapi import describe_answer, describe_body
from .parts import WebParts
from .tenant import Tenant
from .turn_answer import StreamedTurn, WholeTurn
from .turn_requests import chat_request, completion_request, ignored_fields, num_choices, of_choice
from .writers import ChatWriter, ChoiceWriter, CompletionWriter, TurnHead

_Body = TypeVar("_Body", ChatBody, CompletionBody)


def inference_routes(parts: WebParts, metrics: HttpMetrics) -> APIRouter:
    """The routes that run turns."""
    router = APIRouter(tags=["inference"])
    chat = _Endpoint(parts, metrics, "chat", BodyDecoder(ChatBody))
    completions = _Endpoint(parts, metrics, "completions", BodyDecoder(CompletionBody))

    @router.post(
        "/v1/chat/completions",
        openapi_extra=describe_body(ChatBody),
        responses=describe_answer(ChatCompletion, streamed=True),
        response_class=Response,
    )
    async def chat_completions(request: Request, tenant: Tenant) -> Response:
        """Answer a conversation. Later requests of the same conversation reuse its exact tokens and their KV."""
        return await chat.answer(request, tenant, chat_request, "chatcmpl", ChatWriter)

    @router.post(
        "/v1/completions",
        openapi_extra=describe_body(CompletionBody),
        responses=describe_answer(TextCompletion, streamed=True),
        response_class=Response,
    )
    async def text_completions(request: Request, tenant: Tenant) -> Response:
        """Continue a text or a list of token ids, without a chat template."""
        return await completions.answer(request, tenant, completion_request, "cmpl", CompletionWriter)

    return router


class _Endpoint:
    """The way of a request that both endpoints share."""

    def __init__(self, parts: WebParts, metrics: HttpMetrics, name: str, decoder: BodyDecoder) -> None:
        self._parts = parts
        self._metrics = metrics
        self._name = name
        self._decoder = decoder

    async def answer(
        self,
        request: Request,
        tenant: str,
        translate: Callable[[_Body, str], CompletionRequest],
        id_prefix: str,
        writer_class: Callable[..., ChoiceWriter],
    ) -> Response:
        """Read, check and start the turn. Raises SessileError before it has started."""
        parts = self._parts
        parts.check_admission()
        sent = await read_body(request, parts.http.max_body_bytes)
        body: _Body = self._decoder.decode(sent)
        parts.served.check(body.model)
        turn = sent_by(translate(body, tenant), request.headers, sent, body)
        count = num_choices(body)
        wanted = wanted_grammar(body)
        if wanted is not None:
            await parts.turns.check_grammar(wanted.grammar, wanted.field)
        head = TurnHead.new(
            id_prefix,
            parts.served.name,
            parts.engine.info.fingerprint,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            want_logprobs=turn.sampling.logprobs is not None,
        )
        headers = {"x-request-id": head.id, "x-sessile-model": head.model, **neutralised_header(turn)}
        if ignored := ignored_fields(body):
            headers["x-sessile-ignored"] = ", ".join(ignored)
        meter = self._metrics.start_turn(self._name)
        if count > 1:
            events = [parts.turns.complete(of_choice(turn, index)) for index in range(count)]
            writers = [writer_class(head, parts.token_bytes, index) for index in range(count)]
            several = StreamedChoices if body.stream else WholeChoices
            return several(merged(events), writers, meter, headers)
        kind = StreamedTurn if body.stream else WholeTurn
        return kind(parts.turns.complete(turn), writer_class(head, parts.token_bytes), meter, headers)
