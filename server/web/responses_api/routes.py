"""``/v1/responses`` and ``/v1/conversations``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ....sessions.errors import RequestError, SessileError
from ....sessions.ids import unguessable
from ....sessions.manager.requests import AppendRequest, CloseRequest, CompletionRequest, MessagesInput, OpenSession
from ....sessions.manager.turn_events import CompletionEvent, TurnBegun, TurnFinished
from ...field_names import FieldNames
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
from .answers import (
    ConversationId,
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    InputItems,
    InputTokens,
    ResponseObject,
)
from .bodies import ConversationBody, NamedFunction, ResponsesBody
from .items import items_of, messages_of
from .kept import KeptResponses
from .requests import OWN_TOOLS, SENT_NAMES, TOOL_REMEDY, check, ignored_fields, response_request
from .writer import ResponseWriter

_ITEM_NAMES = FieldNames({r"input(?:\.messages)?\b(.*)": r"items\1"})  # of a new conversation


def responses_routes(parts: WebParts, metrics: HttpMetrics) -> APIRouter:
    """The routes of the Responses API."""
    router = APIRouter(tags=["responses"])
    endpoint = ResponsesEndpoint(parts, metrics)

    @router.post(
        "/v1/responses",
        openapi_extra=describe_body(ResponsesBody),
        responses=describe_answer(ResponseObject, streamed=True),
        response_class=Response,
    )
    async def create(request: Request, tenant: Tenant) -> Response:
        """Answer an input, which may continue an earlier response or a conversation."""
        return await endpoint.create(request, tenant)

    @router.post(
        "/v1/responses/input_tokens",
        openapi_extra=describe_body(ResponsesBody),
        responses=describe_answer(InputTokens),
        response_class=Response,
    )
    async def input_tokens(request: Request, tenant: Tenant) -> Response:
        """Count the tokens of a response's prompt, without an answer."""
        body, turn = await endpoint.read(await read_body(request, parts.http.max_body_bytes), tenant)
        with SENT_NAMES.told():
            counted = await parts.turns.count_tokens(turn)
        headers = told_headers(parts.served.name, ignored_fields(body))
        return json_answer(InputTokens(input_tokens=counted), headers=headers)

    @router.get("/v1/responses/{response_id}", responses=describe_answer(ResponseObject), response_class=Response)
    async def get(response_id: str, tenant: Tenant) -> Response:
        """A response that was stored."""
        return json_answer((await endpoint.kept.get(tenant, response_id)).response)

    @router.delete("/v1/responses/{response_id}", responses=describe_answer(DeletedResponse), response_class=Response)
    async def delete(response_id: str, tenant: Tenant) -> Response:
        """Forget a response. Those that continue it stay."""
        await endpoint.kept.delete(tenant, response_id)
        return json_answer(DeletedResponse(id=response_id))

    @router.get(
        "/v1/responses/{response_id}/input_items", responses=describe_answer(InputItems), response_class=Response
    )
    async def input_items(
        response_id: str,
        tenant: Tenant,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """The items of a response's input, the last one first."""
        items = (await endpoint.kept.get(tenant, response_id)).input
        return json_answer(_page(items if order == "asc" else items[::-1], limit, after))

    _add_conversations(router, endpoint)
    return router


def _add_conversations(router: APIRouter, endpoint: ResponsesEndpoint) -> None:
    decoder = BodyDecoder(ConversationBody)
    sessions, limit = endpoint.parts.sessions, endpoint.parts.http.max_body_bytes

    @router.post(
        "/v1/conversations",
        openapi_extra=describe_body(ConversationBody),
        responses=describe_answer(ConversationObject),
        response_class=Response,
    )
    async def open_conversation(request: Request, tenant: Tenant) -> Response:
        """Open a conversation: a session, which the id of the answer names."""
        body: ConversationBody = decoder.decode(await read_body(request, limit))
        said = messages_of(body.items or (), "items")
        view = await sessions.open(OpenSession(tenant=tenant))
        if said:
            begin = AppendRequest(session_id=view.session_id, tenant=tenant, input=MessagesInput(said))
            try:
                with _ITEM_NAMES.told():
                    await sessions.append(begin)
            except SessileError:  # nobody would ever know of a session that is there without its items
                await sessions.close(CloseRequest(session_id=view.session_id, tenant=tenant))
                raise
        headers = {"x-sessile-ignored": "metadata"} if body.metadata is not msgspec.UNSET else {}
        return json_answer(ConversationObject(id=view.session_id, created_at=int(view.created_at)), headers=headers)

    @router.get(
        "/v1/conversations/{conversation_id}", responses=describe_answer(ConversationObject), response_class=Response
    )
    async def get_conversation(conversation_id: str, tenant: Tenant) -> Response:
        """A conversation."""
        view = await sessions.get(conversation_id, tenant)
        return json_answer(ConversationObject(id=view.session_id, created_at=int(view.created_at)))

    @router.delete(
        "/v1/conversations/{conversation_id}", responses=describe_answer(DeletedConversation), response_class=Response
    )
    async def close_conversation(conversation_id: str, tenant: Tenant) -> Response:
        """Close a conversation's session. Its responses stay until their time is over."""
        await sessions.close(CloseRequest(session_id=conversation_id, tenant=tenant))
        return json_answer(DeletedConversation(id=conversation_id))


class ResponsesEndpoint:
    """The way of a request that makes a response."""

    def __init__(self, parts: WebParts, metrics: HttpMetrics) -> None:
        self.parts = parts
        self._metrics = metrics
        self._decoder = BodyDecoder(ResponsesBody, foreign_tools(OWN_TOOLS, TOOL_REMEDY))

    @property
    def kept(self) -> KeptResponses:
        """The responses that are kept."""
        return KeptResponses(self.parts.turns.responses, self.parts.http.response_ttl_s)

    async def read(self, sent: bytes, tenant: str) -> tuple[ResponsesBody, CompletionRequest]:
        """The body, and the turn that it asks for."""
        body: ResponsesBody = self._decoder.decode(sent)
        self.parts.served.check(body.model)
        check(body)
        with SENT_NAMES.told():
            before = await self.kept.before(body, tenant)
        return body, response_request(body, tenant, before)

    async def create(self, request: Request, tenant: str) -> Response:
        """The answer to an HTTP request. Raises SessileError before the turn has started."""
        self.parts.check_admission()
        sent = await read_body(request, self.parts.http.max_body_bytes)
        return await self.begin(sent, Caller.of(request, tenant))

    async def begin(self, sent: bytes, caller: Caller) -> Response:
        """The answer to a body, which runs the turn. Raises SessileError before it has started."""
        parts = self.parts
        parts.check_admission()
        body, turn = await self.read(sent, caller.tenant)
        if turn.keep:
            parts.turns.responses.require_writable()
        caller.check_stream(body.stream)
        turn = caller.turn(turn, sent, body)
        if turn.sampling.grammar is not None:
            await parts.turns.check_grammar(turn.sampling.grammar, "text.format.schema")
        head = _head(body, turn, parts.served.name)
        headers = {"x-request-id": head.id, **told_headers(head.model, ignored_fields(body), turn)}
        writer = ResponseWriter(head)
        events, meter = self._stored(turn, body, writer), self._metrics.start_turn("responses")
        kind = StreamedTurn if body.stream else WholeTurn
        return kind(events, writer, meter, headers, parts.http.ping_s)

    async def _stored(
        self, turn: CompletionRequest, body: ResponsesBody, writer: ResponseWriter
    ) -> AsyncGenerator[CompletionEvent, None]:
        """The turn's events; its end comes when the response is on disk."""
        async with aclosing(SENT_NAMES.told_of(self.parts.turns.complete(turn))) as events:
            async for event in events:
                if not isinstance(event, TurnBegun):
                    writer.heard(event)
                if isinstance(event, TurnFinished) and event.conversation is not None:
                    await self.kept.add(turn.tenant, writer.response, items_of(body.input or ""), event.conversation)
                yield event


def _head(body: ResponsesBody, turn: CompletionRequest, model: str) -> ResponseObject:
    choice: Any = body.tool_choice or "auto"
    if isinstance(choice, NamedFunction):
        choice = msgspec.to_builtins(choice)
    wanted = body.text.format if body.text is not None else None
    return ResponseObject(
        id=unguessable("resp_"),
        created_at=int(time.time()),
        status="in_progress",
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        conversation=None if turn.session_id is None else ConversationId(turn.session_id),
        store=turn.keep,
        temperature=turn.sampling.temperature,
        text={"format": {"type": "text"} if wanted is None else msgspec.to_builtins(wanted)},
        tool_choice=choice,
        tools=[msgspec.to_builtins(tool) for tool in body.tools or ()],
        top_p=turn.sampling.top_p,
        metadata=body.metadata or {},
    )


def _page(items: list[dict[str, Any]], limit: int, after: str | None) -> InputItems:
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise RequestError(f"there is no item {after!r}", field="after", remedy="send an id of the page before")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return InputItems(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(items) > limit,
    )
