"""Sessions looked up and changed in the store, and the answers that their requests were given."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..errors import SessionNotFound
from ..session import Session, SessionState
from ..store import Change, DuplicateRequest, KeepingChange, SessionStore, StoredAnswer
from . import answers
from .ports import Clock, SteadyClock
from .requests import ImportSession, Mutation, OpenSession

_Answer = TypeVar("_Answer", bound=msgspec.Struct)

_PRUNE_EVERY_S = 3_600.0
_MOST_AHEAD_S = (
    86_400.0  # a clock that was set forward further than this deletes nothing before its time, until a restart
)


class SessionRecords:
    """The store as the manager's parts use it. What no open session holds is deleted ``retention_s`` seconds later."""

    def __init__(
        self, store: SessionStore, clock: Clock, steady: SteadyClock, retention_s: float, most_open: int = 0
    ) -> None:
        """``most_open``: sessions that a tenant may have opened and not closed; 0: any number."""
        self.store = store
        self._most_open = most_open
        self._clock = clock
        self._steady = steady
        self._retention_s = retention_s
        self._began = clock() - steady()
        self._next_prune_at = steady()

    async def owned(self, session_id: str, tenant: str) -> Session:
        """A session of this tenant, in any state. Raises SessionNotFound."""
        session = await self.store.session(session_id)
        if session is None or session.tenant != tenant:
            raise not_found(session_id)
        return session

    async def open(self, session_id: str, tenant: str) -> Session:
        """An open session of this tenant. Raises SessionNotFound."""
        session = await self.owned(session_id, tenant)
        if session.state is SessionState.CLOSED:
            raise not_found(session_id)
        return session

    async def find(self, request: Mutation) -> tuple[Session, StoredAnswer | None]:
        """The session, and what the same request was answered before; a closed session has old answers only."""
        session = await self.owned(request.session_id, request.tenant)
        stored = await self.stored(request)
        if stored is None and session.state is SessionState.CLOSED:
            raise not_found(request.session_id)
        return session, stored

    async def stored(self, request: OpenSession | ImportSession | Mutation) -> StoredAnswer | None:
        """What the request's id was answered before.

        Raises:
            StoreError: it was not, and no answer can be kept now.
        """
        if request.request_id is not None:
            stored = await self.store.answer(answers.scope_of(request), request.request_id)
            if stored is not None:
                return stored
        self.store.require_writable()
        return None

    async def commit(
        self, request: OpenSession | ImportSession | Mutation, change: Change, answer: _Answer
    ) -> tuple[_Answer, Session | None]:
        """Make the change durable, and with it the answer to its request id; the session as it stands afterwards.

        Without a session, the same request was answered while this one was on its way, and the answer is that one's.
        """
        to_remember = answers.stored_answer(request, answer, now=self._clock())
        try:
            limited = msgspec.structs.replace(change, answer=to_remember, most_open=self._most_open)
            session = await self.store.apply(limited)
        except DuplicateRequest:
            return await self._answer_of_other(request, answer), None
        self._prune_sometimes()
        return answer, session

    async def keep(self, request: Mutation, change: KeepingChange, answer: _Answer) -> tuple[_Answer, bool]:
        """Change how a session is kept, and with it remember the answer; False if another request was quicker."""
        to_remember = answers.stored_answer(request, answer, now=self._clock())
        try:
            await self.store.keep(request.session_id, change, to_remember)
        except DuplicateRequest:
            return await self._answer_of_other(request, answer), False
        return answer, True

    async def _answer_of_other(self, request: OpenSession | ImportSession | Mutation, answer: _Answer) -> _Answer:
        stored = await self.stored(request)
        if stored is None:
            raise AssertionError("an answer that kept another one out is there")
        return answers.answer_again(stored, request, type(answer))

    def _prune_sometimes(self) -> None:
        steady = self._steady()
        if steady >= self._next_prune_at:
            self._next_prune_at = steady + _PRUNE_EVERY_S
            now = min(self._clock(), self._began + steady + _MOST_AHEAD_S)
            self.store.prune_soon(now - self._retention_s, now)


def not_found(session_id: str) -> SessionNotFound:
    """No such open session, or none of this tenant: the two are not told apart."""
    text = f"there is no open session {session_id!r}"
    return SessionNotFound(text, field="session_id", remedy="list those that are open, or open one")
