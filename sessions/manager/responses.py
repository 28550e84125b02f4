"""Responses of the Responses API: bodies that their owner writes, each at the end of a conversation that is kept."""

from __future__ import annotations

import msgspec

from ..messages import Message, Tool
from ..store import SessionStore, StoredResponse
from . import validation
from .conversations import Conversations
from .ports import Clock
from .records import SessionRecords
from .requests import ConversationEnd


class SaidConversation(msgspec.Struct, frozen=True, kw_only=True):
    """What a session's log says; ``end`` is None where it says nothing yet."""

    messages: tuple[Message, ...]
    end: ConversationEnd | None
    tools: tuple[Tool, ...]


class Responses:
    """Kept in the session store, each for its time. It keeps the tokens of its conversation from being forgotten."""

    def __init__(
        self, store: SessionStore, records: SessionRecords, conversations: Conversations, clock: Clock
    ) -> None:
        self._store = store
        self._records = records
        self._conversations = conversations
        self._clock = clock

    def require_writable(self) -> None:
        """Raise StoreError, saying what to do, while no response can be kept."""
        failure = self._store.failure
        if failure is not None:
            failure.remedy = f'send it with "store": false, which keeps nothing; for the operator: {failure.remedy}'
            raise failure

    async def add(self, tenant: str, response_id: str, body: bytes, end: ConversationEnd, *, ttl_s: float) -> None:
        """Keep ``body`` under a new id for ``ttl_s`` seconds."""
        now = self._clock()
        await self._store.add_response(
            StoredResponse(
                tenant=tenant,
                response_id=response_id,
                session_id=end.session_id,
                place=end.place,
                key=end.key,
                body=body,
                created_at=now,
                expires_at=now + ttl_s,
            )
        )

    async def get(self, tenant: str, response_id: str) -> tuple[bytes, ConversationEnd] | None:
        """The body, and where its conversation ends; None if there is no such response, or its time is over."""
        validation.require_identifier(response_id, "response_id")
        found = await self._store.response(tenant, response_id)
        if found is None or found.expires_at <= self._clock():
            return None
        return found.body, ConversationEnd(key=found.key, session_id=found.session_id, place=found.place)

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response; whether there was one."""
        validation.require_identifier(response_id, "response_id")
        return await self._store.delete_response(tenant, response_id)

    async def messages_at(self, end: ConversationEnd) -> tuple[Message, ...]:
        """What the conversation says up to there."""
        return await self._conversations.messages_at(end.place)

    async def conversation(self, tenant: str, session_id: str) -> SaidConversation:
        """What an open session says. Raises SessionNotFound."""
        validation.require_session_id(session_id)
        session = await self._records.open(session_id, tenant)
        messages, end = await self._conversations.end_of(session)
        return SaidConversation(messages=messages, end=end, tools=session.tools)
