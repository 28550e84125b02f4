"""Responses as they are kept in the session store, and what a new one continues."""

from __future__ import annotations

from typing import Any

import msgspec

from ....sessions.manager.requests import ConversationEnd
from ....sessions.manager.responses import Responses
from ....sessions.messages import Role
from ..errors import UnknownResponse
from .answers import ResponseObject
from .bodies import ConversationRef, ResponsesBody
from .requests import Before


class KeptResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is written of a response: itself, and the items of its input."""

    response: ResponseObject
    input: list[dict[str, Any]]


class KeptResponses:
    """Responses of all tenants. One is kept for ``ttl_s`` seconds."""

    def __init__(self, responses: Responses, ttl_s: float) -> None:
        self._responses = responses
        self._ttl_s = ttl_s

    async def add(
        self, tenant: str, response: ResponseObject, items: list[dict[str, Any]], end: ConversationEnd
    ) -> None:
        """Keep a response whose turn ended there."""
        body = msgspec.json.encode(KeptResponse(response=response, input=items))
        await self._responses.add(tenant, response.id, body, end, ttl_s=self._ttl_s)

    async def get(self, tenant: str, response_id: str) -> KeptResponse:
        """A response. Raises UnknownResponse."""
        body, _ = await self._found(tenant, response_id, "response_id")
        return body

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response. Raises UnknownResponse."""
        if not await self._responses.delete(tenant, response_id):
            raise UnknownResponse(response_id, "response_id")

    async def before(self, body: ResponsesBody, tenant: str) -> Before:
        """What a new response continues.

        Raises:
            UnknownResponse: the previous response is not kept, or its time is over.
            SessionNotFound: there is no such conversation.
        """
        if body.previous_response_id is not None:
            return await self._after_response(tenant, body.previous_response_id)
        if body.conversation is not None:
            named = body.conversation.id if isinstance(body.conversation, ConversationRef) else body.conversation
            return await self._in_conversation(tenant, named, body.instructions)
        return Before()

    async def _after_response(self, tenant: str, response_id: str) -> Before:
        kept, end = await self._found(tenant, response_id, "previous_response_id")
        messages = await self._responses.messages_at(end)
        if kept.response.instructions and messages and messages[0].role is Role.SYSTEM:
            messages = messages[1:]  # instructions hold for one response
        conversation = kept.response.conversation
        return Before(messages=messages, end=end, session_id=None if conversation is None else conversation.id)

    async def _in_conversation(self, tenant: str, session_id: str, instructions: str | None) -> Before:
        said = await self._responses.conversation(tenant, session_id)
        messages = said.messages
        if instructions and messages and messages[0].role is Role.SYSTEM:
            messages = messages[1:]  # without instructions of a new response, those of the conversation hold
        return Before(messages=messages, end=said.end, session_id=session_id, tools=said.tools)

    async def _found(self, tenant: str, response_id: str, field: str) -> tuple[KeptResponse, ConversationEnd]:
        found = await self._responses.get(tenant, response_id)
        if found is None:
            raise UnknownResponse(response_id, field)
        body, end = found
        return msgspec.json.decode(body, type=KeptResponse), end
