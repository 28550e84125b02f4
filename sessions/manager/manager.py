"""The session manager: a turn's way from a request to committed tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import msgspec

from ...server.engine.grammar import Grammar
from ...server.text.answer_format import TextConfig
from ...server.text.chat_template import ChatTemplate
from ...server.text.grammar_config import GrammarConfig
from ...server.text.tokenizer import Tokenizer
from ..keeping import Keeping, Persistence, PersistencePolicy
from ..session import START, Session, SessionState
from ..store import Change, SessionStore, StoredAnswer
from . import answers, validation
from .cache_watch import CacheWatch
from .completions import Completions
from .events import Happening, SessionEvent
from .kv_care import KvCare
from .kv_requests import KvRequests
from .ports import Clock, SteadyClock, TurnEngine, TurnObserver
from .records import SessionRecords
from .replay import ReplayMemory
from .requests import (
    Appended,
    AppendRequest,
    CloseRequest,
    CompletionRequest,
    ExportRequest,
    ForkRequest,
    GenerateRequest,
    HintOutcome,
    HintRequest,
    Imported,
    ImportSession,
    ListSessions,
    Mutation,
    OpenSession,
    Resumed,
    ResumeRequest,
    RollbackRequest,
    SessionPage,
    SessionView,
    Suspended,
    SuspendRequest,
    WatchRequest,
)
from .responses import Responses
from .running import RunningWork
from .session_turns import Changed, SessionTurns
from .transfer import SessionTransfer
from .turn_accounts import turns_of
from .turn_events import CompletionEvent, TurnEvent, TurnFinished, TurnSummary
from .turns import Turns
from .views import new_session_id, summary_of, view_of
from .watchers import Watchers

logger = logging.getLogger(__name__)

RETENTION_S = 7 * 86_400.0  # closed sessions, abandoned entries and answers to request ids stay this long
DEFAULT_POLICY = PersistencePolicy(Persistence.ALWAYS)

_Request = TypeVar("_Request", bound=Mutation)
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class SessionManager:
    """Sessions and their turns, for one event loop; see ``service.Sessions`` for the contract.

    A change is answered only after it is on disk. A turn is committed at its end, input and answer together; a turn
    that fails, is cancelled or dies with the process leaves the session as it was.

    ``model_aliases`` are names of the served model beside its own; ``text_config`` says how its calls and reasoning are
    read, ``grammars`` bounds what answers may be made to look like. What no open session holds is deleted from the
    store ``retention_s`` seconds after it was closed or left. ``persistence`` holds for sessions that were opened
    without a policy of their own; ``most_open_sessions`` is how many a tenant may have (0: any number). ``export_key``
    is the file of the key that exports are signed with; None: one in the store's folder. Timestamps are of ``clock``;
    what is waited for is counted on ``steady``.
    """

    def __init__(
        self,
        store: SessionStore,
        engine: TurnEngine,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        *,
        clock: Clock = time.time,
        steady: SteadyClock = time.monotonic,
        replay: ReplayMemory | None = None,
        retention_s: float = RETENTION_S,
        model_aliases: Collection[str] = (),
        text_config: TextConfig | None = None,
        grammars: GrammarConfig | None = None,
        persistence: PersistencePolicy = DEFAULT_POLICY,
        keep_conversations: bool = True,
        observer: TurnObserver | None = None,
        export_key: Path | None = None,
        most_open_sessions: int = 0,
    ) -> None:
        self._store = store
        self._clock = clock
        self._policy = persistence
        self._running = RunningWork()
        self._records = SessionRecords(store, clock, steady, retention_s, most_open_sessions)
        self._turns = Turns(engine, tokenizer, chat_template, model_aliases, text_config, grammars, observer)
        self._care = KvCare(engine, store, clock, persistence, steady)
        self._completions = Completions(
            self._turns,
            replay if replay is not None else ReplayMemory(),
            store,
            self._running,
            self._care,
            clock,
            self._publish,
            keep=keep_conversations,
        )
        self._session_turns = SessionTurns(
            self._records, self._turns, self._care, clock=clock, policy=persistence, publish=self._publish
        )
        self._responses = Responses(store, self._records, self._completions.conversations, clock)
        self._kv_requests = KvRequests(self._records, engine, self._running, self._care, clock)
        self._transfer = SessionTransfer(self._records, engine, self._turns, clock, persistence, export_key)
        self._watchers = Watchers(clock)
        self._cache_watch = CacheWatch(engine, self._watchers)

    @property
    def running(self) -> RunningWork:
        """What is in hand, to look at."""
        return self._running

    @property
    def responses(self) -> Responses:
        """What is kept for the Responses API."""
        return self._responses

    @property
    def care(self) -> KvCare:
        """What the engine's cache is told of sessions."""
        return self._care

    async def drain(self) -> None:
        """Take no new work, and wait for what is running. Watches end."""
        self._watchers.close()
        await self._running.drain()

    async def aclose(self) -> None:
        """Tell the engine's cache nothing more, and let go of the tokenising thread. The store stays its owner's."""
        self._watchers.close()
        await self._care.aclose()
        self.shutdown()

    def shutdown(self) -> None:
        """Let go of threads and processes. The store stays its owner's to close."""
        self._turns.shutdown()

    async def open(self, request: OpenSession) -> SessionView:
        """Open a session with an empty log."""
        with self._running.admitted():
            engine = self._turns.engine_info()
            validation.require_opening(request)
            self._turns.require_model(request.model)
            stored = await self._records.stored(request)
            if stored is not None:
                return answers.answer_again(stored, request, SessionView)
            now = self._clock()
            session = Session(
                session_id=new_session_id(now),
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
                keeping=Keeping(persistence=request.persistence),
            )
            answer, _ = await self._records.commit(
                request, Change(session=session, base_version=0), view_of(session, self._policy)
            )
            return answer

    async def fork(self, request: ForkRequest) -> SessionView:
        """Another session on the same log. A turn that runs in the source is not part of it."""
        with self._running.admitted():
            validation.require_mutation(request)
            session, stored = await self._records.find(request)
            if stored is not None:
                return answers.answer_again(stored, request, SessionView)
            session.require_version(request.expected_version)
            place = session.place
            if request.at is not None:
                place = (await self._store.log(session.place)).find(request.at, "at")
            now = self._clock()
            fork = session.forked(new_session_id(now), place, now=now)
            answer, made = await self._records.commit(
                request, Change(session=fork, base_version=0), view_of(fork, self._policy)
            )
            if made is not None:
                self._turns.observer.forked(answer.session_id, session.session_id)
                await self._kv_requests.forked(session, place.num_tokens)
            return answer

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
        return await self._change(request, Appended, self._session_turns.append)

    async def hint(self, request: HintRequest) -> HintOutcome:
        """Take a hint; see ``service.Sessions.hint``."""
        with self._running.admitted():
            return await self._kv_requests.hint(request)

    async def suspend(self, request: SuspendRequest) -> Suspended:
        """Give the session's device memory back."""
        with self._running.admitted():
            return await self._kv_requests.suspend(request)

    async def resume(self, request: ResumeRequest) -> Resumed:
        """Begin to bring the session's KV back."""
        with self._running.admitted():
            return await self._kv_requests.resume(request)

    async def watch(self, request: WatchRequest) -> AsyncGenerator[SessionEvent, None]:
        """Events of one session or all of a tenant; see ``service.Sessions.watch``."""
        validation.require_tenant(request.tenant)
        if request.session_id is not None:
            validation.require_session_id(request.session_id)
            await self._records.open(request.session_id, request.tenant)
        async with aclosing(self._cache_watch.watch(request.tenant, request.session_id)) as events:
            async for event in events:
                yield event

    async def export(self, request: ExportRequest) -> AsyncGenerator[bytes, None]:
        """A session as a file, in pieces; see ``service.Sessions.export``."""
        with self._running.admitted():
            async with aclosing(self._transfer.export(request)) as pieces:
                async for piece in pieces:
                    yield piece

    async def import_(self, request: ImportSession, pieces: AsyncIterator[bytes]) -> Imported:
        """A session from a file; see ``service.Sessions.import_``."""
        with self._running.admitted():
            return await self._transfer.import_(request, pieces)

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

    async def count_tokens(self, request: CompletionRequest) -> int:
        """Tokens of the prompt that ``complete`` would run."""
        return len(await self._completions.prompt_tokens(request))

    async def prompt_tokens(self, request: CompletionRequest) -> list[int]:
        """The prompt that ``complete`` would run, in tokens."""
        return await self._completions.prompt_tokens(request)

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, special tokens included. Raises RequestError for one that is none."""
        return await self._turns.text_of(token_ids)

    def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """Run a turn of a client that names no session; see ``service.Sessions.complete``."""
        return self._completions.complete(request)

    async def get(self, session_id: str, tenant: str = "") -> SessionView:
        """An open session. A turn that is just ending, or being cleaned up after, is waited for."""
        validation.require_tenant(tenant)
        validation.require_session_id(session_id)
        await self._running.settled(session_id)
        session = await self._records.open(session_id, tenant)
        return view_of(session, self._policy, busy=self._running.is_busy(session_id))

    async def turns(self, session_id: str, tenant: str = "") -> tuple[TurnSummary, ...]:
        """The finished turns of an open session."""
        validation.require_tenant(tenant)
        validation.require_session_id(session_id)
        session = await self._records.open(session_id, tenant)
        return turns_of(await self._store.log(session.place), await self._store.accounts(session.place))

    async def list(self, request: ListSessions) -> SessionPage:
        """A page of open sessions, without their system prompts and tools."""
        validation.require_listing(request)
        size = request.page_size
        found = await self._store.sessions(request.tenant, after=request.page_token, limit=size + 1)
        page = [
            summary_of(session, self._policy, busy=self._running.is_busy(session.session_id))
            for session in found[:size]
        ]
        return SessionPage(sessions=tuple(page), next_page_token=page[-1].session_id if len(found) > size else "")

    async def _turn_or_answer(self, request: GenerateRequest) -> AsyncGenerator[TurnEvent, None]:
        """The turn, or the answer that the same request got before."""
        stored = await self._stored_while_busy(request)
        if stored is None:
            async with self._running.alone_in(request.session_id, request.request_id) as claim:
                session, stored = await self._records.find(request)
                if stored is None:
                    async with aclosing(self._session_turns.run(request, session, claim)) as events:
                        async for event in events:
                            yield event
                    return
        for told_again in answers.turn_again(stored, request):
            yield told_again

    def _publish(self, session: Session, what: Happening) -> None:
        self._watchers.publish(session.tenant, session.session_id, what)

    async def _rolled_back(self, request: RollbackRequest, session: Session) -> tuple[Change, SessionView, Changed]:
        log = await self._store.log(session.place)
        after = session.moved(log.find(request.to, "to"), now=self._clock())
        change = Change(session=after, base_version=session.version)
        return change, view_of(after, self._policy), lambda committed: self._care.rolled_back(committed, log)

    async def _closed(self, request: CloseRequest, session: Session) -> tuple[Change, SessionView, Changed]:
        log = await self._store.log(session.place)
        after = session.closed(now=self._clock())
        change = Change(session=after, base_version=session.version)
        return change, view_of(after, self._policy), lambda committed: self._care.closed(committed, log)

    async def _change(
        self,
        request: _Request,
        answer_type: type[_Answer],
        make: Callable[[_Request, Session], Awaitable[tuple[Change, _Answer, Changed]]],
    ) -> _Answer:
        """Change a session while nothing else does, or answer as the same request was answered before."""
        with self._running.admitted():
            validation.require_mutation(request)
            stored = await self._stored_while_busy(request)
            if stored is None:
                async with self._running.alone_in(request.session_id, request.request_id) as claim:
                    if not isinstance(request, AppendRequest):
                        claim.is_ending()  # short, without the engine
                    session, stored = await self._records.find(request)
                    if stored is None:
                        session.require_version(request.expected_version)
                        change, answer, changed = await make(request, session)
                        answer, committed = await self._records.commit(request, change, answer)
                        if committed is not None:
                            changed(committed)
                        return answer
            return answers.answer_again(stored, request, answer_type)

    async def _stored_while_busy(self, request: Mutation) -> StoredAnswer | None:
        """The answer to a request that came before the turn which runs now."""
        if not self._running.is_refusing(request.session_id):
            return None
        await self._records.owned(request.session_id, request.tenant)
        return await self._records.stored(request)
