"""The session manager: a turn's way from a request to committed tokens."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import TypeVar

import msgspec

from ...server.engine.grammar import Grammar
from ...server.text.chat_template import ChatTemplate
from ...server.text.grammar_config import GrammarConfig
from ...server.text.tokenizer import Tokenizer
from ..errors import RequestError, SessionNotFound
from ..session import START, EntryKind, NewEntry, Session, SessionLog, SessionState, tokens_in
from ..store import Change, DuplicateRequest, SessionStore, StoredAnswer
from . import answers, validation
from .completions import Completions
from .ports import Clock, TurnEngine
from .prompts import assistant_message
from .replay import ReplayMemory
from .requests import (
    Appended,
    AppendRequest,
    CloseRequest,
    CompletionRequest,
    ForkRequest,
    GenerateRequest,
    ListSessions,
    Mutation,
    OpenSession,
    RollbackRequest,
    SessionPage,
    SessionView,
    TurnEvent,
    TurnFinished,
)
from .running import Claim, RunningWork
from .turn import TurnResult
from .turns import Turns

logger = logging.getLogger(__name__)

RETENTION_S = 7 * 86_400.0  # closed sessions, abandoned entries and answers to request ids stay this long
_PRUNE_EVERY_S = 3_600.0

_Request = TypeVar("_Request", bound=Mutation)
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class SessionManager:
    """Sessions and their turns, for one event loop; see ``service.Sessions`` for the contract.

    A change is answered only after it is on disk. A turn is committed at its end, input and answer together; a turn
    that fails, is cancelled or dies with the process leaves the session as it was.

    ``model_aliases`` are names of the served model beside its own. What no open session holds is deleted from the store
    ``retention_s`` seconds after it was closed or left. ``grammars`` bounds what answers may be made to look like.
    """

    def __init__(
        self,
        store: SessionStore,
        engine: TurnEngine,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        *,
        clock: Clock = time.time,
        replay: ReplayMemory | None = None,
        retention_s: float = RETENTION_S,
        model_aliases: Collection[str] = (),
        grammars: GrammarConfig | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_s = retention_s
        self._next_prune_at = 0.0
        self._running = RunningWork()
        self._turns = Turns(engine, tokenizer, chat_template, model_aliases, grammars)
        self._completions = Completions(self._turns, replay if replay is not None else ReplayMemory())

    @property
    def running(self) -> RunningWork:
        """What is in hand, to look at."""
        return self._running

    async def drain(self) -> None:
        """Take no new work, and wait for what is running."""
        await self._running.drain()

    def shutdown(self) -> None:
        """Let go of threads and processes. The store stays its owner's to close."""
        self._turns.shutdown()

    async def open(self, request: OpenSession) -> SessionView:
        """Open a session with an empty log."""
        with self._running.admitted():
            engine = self._turns.engine_info()
            validation.require_opening(request)
            self._turns.require_model(request.model)
            stored = await self._stored(request)
            if stored is not None:
                return answers.answer_again(stored, request, SessionView)
            now = self._clock()
            session = Session(
                session_id=_new_session_id(now),
                tenant=request.tenant,
                version=1,
                state=SessionState.OPEN,
                place=START,
                model=self._turns.identity(engine),
                system=request.system,
                tools=request.tools,
                parent_session_id=None,
                created_at=now,
                updated_at=now,
            )
            return await self._commit(request, Change(session=session, base_version=0), _view(session))

    async def fork(self, request: ForkRequest) -> SessionView:
        """Another session on the same log. A turn that runs in the source is not part of it."""
        with self._running.admitted():
            validation.require_mutation(request)
            session, stored = await self._find(request)
            if stored is not None:
                return answers.answer_again(stored, request, SessionView)
            session.require_version(request.expected_version)
            place = session.place
            if request.at is not None:
                place = (await self._store.log(session.place)).find(request.at, "at")
            now = self._clock()
            fork = session.forked(_new_session_id(now), place, now=now)
            return await self._commit(request, Change(session=fork, base_version=0), _view(fork))

    async def rollback(self, request: RollbackRequest) -> SessionView:
        """Go back to a point of the log; what came after it is no longer part of the session."""
        return await self._change(request, SessionView, self._rolled_back)

    async def close(self, request: CloseRequest) -> SessionView:
        """Close the session."""
        return await self._change(request, SessionView, self._closed)

    async def append(self, request: AppendRequest) -> Appended:
        """Prefill new input and add it to the log."""
        engine = self._turns.engine_info()
        validation.require_input(request.input, engine, "input")
        return await self._change(request, Appended, self._appended)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TurnEvent, None]:
        """Run a turn; see ``service.Sessions.generate``."""
        with self._running.admitted():
            validation.require_turn(request, self._turns.engine_info())
            await self._turns.check_grammar(request.sampling.grammar, "sampling.grammar")
            last: TurnFinished | None = None
            async with aclosing(self._turn_or_answer(request)) as events:
                async for event in events:
                    if isinstance(event, TurnFinished):
                        last = event  # told when the session is free again: the caller may go on at once
                    else:
                        yield event
            if last is not None:
                yield last

    async def check_grammar(self, grammar: Grammar | None, field: str) -> None:
        """Raise RequestError naming ``field`` unless ``grammar`` can be used. ``complete`` does so too, under its own
        name of the field; what was found is remembered."""
        await self._turns.check_grammar(grammar, field)

    def complete(self, request: CompletionRequest) -> AsyncGenerator[TurnEvent, None]:
        """Run a turn without a session; see ``service.Sessions.complete``."""
        return self._completions.complete(request, self._running)

    async def get(self, session_id: str, tenant: str = "") -> SessionView:
        """An open session. A turn that is just ending, or being cleaned up after, is waited for."""
        validation.require_tenant(tenant)
        validation.require_session_id(session_id)
        await self._running.settled(session_id)
        session = await self._owned(session_id, tenant)
        if session.state is SessionState.CLOSED:
            raise _not_found(session_id)
        return _view(session, busy=self._running.is_busy(session_id))

    async def list(self, request: ListSessions) -> SessionPage:
        """A page of open sessions, without their system prompts and tools."""
        validation.require_listing(request)
        size = request.page_size
        found = await self._store.sessions(request.tenant, after=request.page_token, limit=size + 1)
        page = [_summary(session, busy=self._running.is_busy(session.session_id)) for session in found[:size]]
        return SessionPage(sessions=tuple(page), next_page_token=page[-1].session_id if len(found) > size else "")

    async def _turn_or_answer(self, request: GenerateRequest) -> AsyncGenerator[TurnEvent, None]:
        """The turn, or the answer that the same request got before."""
        stored = await self._stored_while_busy(request)
        if stored is None:
            async with self._running.alone_in(request.session_id, request.request_id) as claim:
                session, stored = await self._find(request)
                if stored is None:
                    async with aclosing(self._turn(request, session, claim)) as events:
                        async for event in events:
                            yield event
                    return
        for told_again in answers.turn_again(stored, request):
            yield told_again

    async def _turn(self, request: GenerateRequest, session: Session, claim: Claim) -> AsyncGenerator[TurnEvent, None]:
        log = await self._continued(request, session)
        prompt = await self._turns.prompt(session, log, request)
        run = self._turns.run(prompt.token_ids, request, logged_tokens=prompt.logged_tokens)
        try:
            async with aclosing(run.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            claim.is_ending()
        yield await self._commit_turn(request, session, prompt.entry, run.result, in_chat=prompt.in_chat)

    async def _commit_turn(
        self, request: GenerateRequest, session: Session, entry: NewEntry | None, result: TurnResult, *, in_chat: bool
    ) -> TurnFinished:
        said = (assistant_message(result.text),) if in_chat else ()
        output = NewEntry(kind=EntryKind.OUTPUT, token_ids=result.token_ids, messages=said)
        entries = (output,) if entry is None else (entry, output)
        after = session.advanced(entries, now=self._clock())
        finished = TurnFinished(
            finish_reason=result.finish_reason,
            stop_cause=result.stop_cause,
            usage=result.usage,
            session_id=session.session_id,
            version=after.version,
            turn=after.place.num_turns,
            num_tokens=after.place.num_tokens,
            tokens_committed=tokens_in(entries),
        )
        answer = answers.turn_answer(result, finished)
        await self._commit(request, Change(session=after, base_version=session.version, entries=entries), answer)
        logger.debug(
            "turn %d: %d tokens, %s",
            finished.turn,
            finished.tokens_committed,
            finished.stop_cause,
            extra=_about(session),
        )
        return finished

    async def _appended(self, request: AppendRequest, session: Session) -> tuple[Change, Appended]:
        log = await self._continued(request, session)
        prompt = await self._turns.prompt(session, log, request)
        if prompt.entry is None:
            raise RequestError("there is nothing to append", field="input")
        usage = await self._turns.prefill(prompt, request)
        after = session.advanced((prompt.entry,), now=self._clock())
        answer = Appended(session=_view(after), tokens_committed=len(prompt.entry.token_ids), usage=usage)
        return Change(session=after, base_version=session.version, entries=(prompt.entry,)), answer

    async def _rolled_back(self, request: RollbackRequest, session: Session) -> tuple[Change, SessionView]:
        log = await self._store.log(session.place)
        after = session.moved(log.find(request.to, "to"), now=self._clock())
        return Change(session=after, base_version=session.version), _view(after)

    async def _closed(self, request: CloseRequest, session: Session) -> tuple[Change, SessionView]:
        after = session.closed(now=self._clock())
        return Change(session=after, base_version=session.version), _view(after)

    async def _change(
        self,
        request: _Request,
        answer_type: type[_Answer],
        make: Callable[[_Request, Session], Awaitable[tuple[Change, _Answer]]],
    ) -> _Answer:
        """Change a session while nothing else does, or answer as the same request was answered before."""
        with self._running.admitted():
            validation.require_mutation(request)
            stored = await self._stored_while_busy(request)
            if stored is None:
                async with self._running.alone_in(request.session_id, request.request_id) as claim:
                    if not isinstance(request, AppendRequest):
                        claim.is_ending()  # short, without the engine
                    session, stored = await self._find(request)
                    if stored is None:
                        session.require_version(request.expected_version)
                        change, answer = await make(request, session)
                        return await self._commit(request, change, answer)
            return answers.answer_again(stored, request, answer_type)

    async def _continued(self, request: Mutation, session: Session) -> SessionLog:
        """The log, of a session that the served model may continue."""
        session.require_version(request.expected_version)
        session.model.require_same(self._turns.identity(self._turns.engine_info()))
        return await self._store.log(session.place)

    async def _commit(self, request: OpenSession | Mutation, change: Change, answer: _Answer) -> _Answer:
        """Make the change durable, and with it the answer to its request id."""
        to_remember = answers.stored_answer(request, answer, now=self._clock())
        try:
            await self._store.apply(msgspec.structs.replace(change, answer=to_remember))
        except DuplicateRequest:
            stored = await self._stored(request)  # answered while this one was on its way
            if stored is None:
                raise
            return answers.answer_again(stored, request, type(answer))
        self._prune_sometimes()
        return answer

    def _prune_sometimes(self) -> None:
        now = self._clock()
        if now >= self._next_prune_at:
            self._next_prune_at = now + _PRUNE_EVERY_S
            self._store.prune_soon(now - self._retention_s)

    async def _stored_while_busy(self, request: Mutation) -> StoredAnswer | None:
        """The answer to a request that came before the turn which runs now."""
        if not self._running.is_refusing(request.session_id):
            return None
        await self._owned(request.session_id, request.tenant)
        return await self._stored(request)

    async def _stored(self, request: OpenSession | Mutation) -> StoredAnswer | None:
        if request.request_id is None:
            return None
        return await self._store.answer(answers.scope_of(request), request.request_id)

    async def _find(self, request: Mutation) -> tuple[Session, StoredAnswer | None]:
        """The session, and what the same request was answered before; a closed session has old answers only."""
        session = await self._owned(request.session_id, request.tenant)
        stored = await self._stored(request)
        if stored is None and session.state is SessionState.CLOSED:
            raise _not_found(request.session_id)
        return session, stored

    async def _owned(self, session_id: str, tenant: str) -> Session:
        session = await self._store.session(session_id)
        if session is None or session.tenant != tenant:
            raise _not_found(session_id)
        return session


def _about(session: Session) -> dict[str, str]:
    return {"session_id": session.session_id}


def _new_session_id(now: float) -> str:
    """Ids sort by the time of opening."""
    return f"ses_{int(now * 1000):012x}{secrets.token_hex(8)}"


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"there is no open session {session_id!r}", field="session_id", remedy="open a session")


def _view(session: Session, *, busy: bool = False) -> SessionView:
    return SessionView(
        session_id=session.session_id,
        tenant=session.tenant,
        version=session.version,
        state=session.state,
        model=session.model.name,
        num_tokens=session.place.num_tokens,
        num_turns=session.place.num_turns,
        busy=busy,
        system=session.system,
        tools=session.tools,
        parent_session_id=session.parent_session_id,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


def _summary(session: Session, *, busy: bool) -> SessionView:
    return msgspec.structs.replace(_view(session, busy=busy), system=None, tools=())
