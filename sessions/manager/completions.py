"""Turns of clients that know no session: each request brings all of a conversation, or a text that nobody keeps."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

import msgspec

from ..errors import ContextOverflow, StoreUnavailable
from ..keeping import NOTHING_SAID, Keeping
from ..session import EntryKind, NewEntry, Place, Session, tokens_in
from ..store import Change, SessionStore
from . import validation
from .completion_prompts import CompletionPrompt, CompletionPrompts
from .conversations import Conversations, Held
from .events import Happening, Missed, TurnStarted, failure_of
from .kv_care import KvCare
from .ports import Clock
from .replay import ConversationKeys, ReplayMemory, client_key, place_key
from .requests import CompletionRequest, ConversationEnd, MessagesInput
from .running import RunningWork
from .turn import TurnResult, TurnRun
from .turn_content import content_of_request
from .turn_events import CompletionEvent, Miss, Replay, TurnBegun, TurnFinished
from .turns import Turns, TurnTerms

logger = logging.getLogger(__name__)

Publish = Callable[[Session, Happening], None]


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn came to, wherever it is kept."""

    result: TurnResult
    miss: Miss | None
    replay: Replay

    def finished(self, num_tokens: int) -> TurnFinished:
        """The end of a turn that no session has."""
        return TurnFinished(
            finish_reason=self.result.finish_reason,
            stop_cause=self.result.stop_cause,
            usage=self.result.usage,
            num_tokens=num_tokens,
            miss=self.miss,
            replay=self.replay,
            tool_calls=self.result.message.tool_calls,
            reasoning_tokens=self.result.reasoning_tokens,
            stop_string=self.result.stop_string,
        )


class Completions:
    """Runs turns without a session of the client's. A conversation becomes a session, or advances the one that holds
    its beginning; its tokens are also remembered in memory, whether it is kept or not. ``keep`` False keeps none."""

    def __init__(
        self,
        turns: Turns,
        replay: ReplayMemory,
        store: SessionStore,
        running: RunningWork,
        care: KvCare,
        clock: Clock,
        publish: Publish,
        *,
        keep: bool,
    ) -> None:
        self._turns = turns
        self._store = store
        self._running = running
        self._care = care
        self._clock = clock
        self._publish = publish
        self._keep = keep
        self.conversations = Conversations(store, running, clock)
        self._prompts = CompletionPrompts(turns, replay, self.conversations)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """The turn's session if it has one, its deltas and its end."""
        with self._running.admitted():
            engine = self._turns.engine_info()
            validation.require_completion(request, engine)
            self._turns.require_model(request.model)
            await self._turns.check_grammar(request.sampling.grammar, "grammar")
            keys = ConversationKeys(request.tenant, request.tools, request.template_arguments)
            try:
                prompt = await self._prompts.prompt(request, keys, engine)
            except ContextOverflow as error:
                error.field = error.field or _field(request)
                raise
            validation.require_room(len(prompt.token_ids), request.sampling.max_tokens, engine, _field(request))
            kept = prompt.key is not None and request.keep and self._keep and self._can_be_kept(request)
            turn = self._kept(request, keys, prompt) if kept else self._unkept(request, keys, prompt)
            async with aclosing(turn) as events:
                async for event in events:
                    yield event

    async def prompt_tokens(self, request: CompletionRequest) -> list[int]:
        """The prompt that ``complete`` would run, in tokens; nothing is run."""
        engine = self._turns.engine_info()
        validation.require_completion(request, engine)
        self._turns.require_model(request.model)
        keys = ConversationKeys(request.tenant, request.tools, request.template_arguments)
        return (await self._prompts.prompt(request, keys, engine)).token_ids

    def _can_be_kept(self, request: CompletionRequest) -> bool:
        """Whether the store takes changes. A client that named the session to go on in is refused instead."""
        if request.session_id is not None:
            self._store.require_writable()
        return self._store.failure is None

    async def _unkept(
        self, request: CompletionRequest, keys: ConversationKeys, prompt: CompletionPrompt
    ) -> AsyncGenerator[CompletionEvent, None]:
        terms = TurnTerms(
            tools=request.tools,
            logged_tokens=prompt.logged_tokens,
            persist=self._care.persists_turns(None),
            lifetime=self._care.lifetime(None),
        )
        run = await self._run(request, prompt, terms)
        async with self._prompts.counting_rewritten(request, prompt) as rewritten:
            self._turns.observer.asked(
                run.turn, prompt.conversation, request.client_session, partial(content_of_request, request)
            )
            yield TurnBegun(session_id="", prompt_tokens=len(prompt.token_ids))
            async with aclosing(run.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
            outcome = await self._outcome(request, prompt, run, rewritten)
        yield self._answered_unkept(request, keys, prompt, outcome)

    async def _kept(
        self, request: CompletionRequest, keys: ConversationKeys, prompt: CompletionPrompt
    ) -> AsyncGenerator[CompletionEvent, None]:
        identity = self._turns.identity(self._turns.engine_info())
        keeping = (
            NOTHING_SAID if request.retain is None else NOTHING_SAID.with_hint(request.retain, 0, now=self._clock())
        )
        branched_from = None
        if prompt.origin is None and request.session_id is None:
            branched_from = await self.conversations.lineage_of(request.tenant, request.client)
        fresh = self.conversations.fresh(request.tenant, request.tools, identity, keeping, branched_from)
        finished: TurnFinished | None = None
        async with self.conversations.held(prompt.origin, fresh, request.session_id) as held:
            if prompt.origin is not None and held.base_version == 0:
                self._turns.observer.forked(held.session.session_id, prompt.origin.session.session_id)
            self._care.turn_begins(held.session, MessagesInput(tuple(prompt.new)))
            self._publish(held.session, TurnStarted(version=held.session.version, prompt_tokens=len(prompt.token_ids)))
            try:
                async with aclosing(self._run_kept(request, keys, prompt, held)) as events:
                    async for event in events:
                        if isinstance(event, TurnFinished):
                            finished = event
                        else:
                            yield event
            except BaseException as error:
                self._publish(held.session, failure_of(error))
                raise
        if finished is not None:
            yield finished

    async def _run_kept(
        self, request: CompletionRequest, keys: ConversationKeys, prompt: CompletionPrompt, held: Held
    ) -> AsyncGenerator[CompletionEvent, None]:
        terms = TurnTerms(
            tools=request.tools,
            logged_tokens=prompt.logged_tokens,
            persist=self._care.persists_turns(held.session),
            lifetime=self._care.lifetime(held.session),
            owner=held.session.session_id,
        )
        run = await self._run(request, prompt, terms)
        async with self._prompts.counting_rewritten(request, prompt) as rewritten:
            self._turns.observer.asked(
                run.turn, held.session.session_id, request.client_session, partial(content_of_request, request)
            )
            yield TurnBegun(session_id=held.session.session_id, prompt_tokens=len(prompt.token_ids))
            try:
                async with aclosing(run.deltas()) as deltas:
                    async for delta in deltas:
                        yield delta
            finally:
                held.is_ending()
            outcome = await self._outcome(request, prompt, run, rewritten)
        try:
            yield await self._commit(request, keys, prompt, held, outcome)
        except StoreUnavailable as error:
            if request.session_id is not None:
                raise
            logger.warning("a turn was answered and not kept: %s", error)
            yield self._answered_unkept(request, keys, prompt, outcome)

    async def _run(self, request: CompletionRequest, prompt: CompletionPrompt, terms: TurnTerms) -> TurnRun:
        bound = await self._turns.with_required_calls(prompt.token_ids, request, request.tools)
        if prompt.key is not None:
            bound = await self._turns.with_thought(prompt.token_ids, bound)
        reading = (
            self._turns.plain_reading(bound)
            if prompt.key is None
            else self._turns.message_reading(prompt.token_ids, bound, request.tools)
        )
        return self._turns.run(prompt.token_ids, bound, reading, terms)

    async def _outcome(
        self, request: CompletionRequest, prompt: CompletionPrompt, run: TurnRun, rewritten: Awaitable[int]
    ) -> _Outcome:
        self._prompts.remember_calls(request.tenant, run.result.message)
        miss = self._turns.observer.miss_of(run.turn.turn_id)
        replay = Replay(
            replayed_tokens=prompt.replayed_tokens,
            rewritten_answers=await rewritten,
            neutralised=prompt.neutralised,
        )
        return _Outcome(result=run.result, miss=miss, replay=replay)

    def _answered_unkept(
        self, request: CompletionRequest, keys: ConversationKeys, prompt: CompletionPrompt, outcome: _Outcome
    ) -> TurnFinished:
        """The end of a turn that memory alone has."""
        result = outcome.result
        if prompt.key is not None:
            key = keys.after(prompt.key, result.message)
            self._prompts.remember_tokens(request.tenant, key, prompt, result)
        return outcome.finished(len(prompt.token_ids) + len(result.token_ids))

    async def _commit(
        self,
        request: CompletionRequest,
        keys: ConversationKeys,
        prompt: CompletionPrompt,
        held: Held,
        outcome: _Outcome,
    ) -> TurnFinished:
        assert prompt.key is not None
        result = outcome.result
        entries = (
            NewEntry(kind=EntryKind.PROMPT, token_ids=tuple(prompt.new_token_ids), messages=tuple(prompt.new)),
            NewEntry(kind=EntryKind.OUTPUT, token_ids=result.token_ids, messages=(result.message,)),
        )
        now = self._clock()
        after = held.session.advanced(entries, now=now)
        key = keys.after(prompt.key, result.message)
        client = request.client.name
        change = Change(
            session=after,
            base_version=held.base_version,
            entries=entries,
            keep=lambda keeping: _kept_on(keeping, request, after.place, now),
            conversation_keys=(key, client_key(key, client)) if client else (key,),
            inferred=True,
            client=client,
        )
        committed = await self._store.apply(change)
        self._prompts.remember_tokens(request.tenant, place_key(committed.place), prompt, result)
        calls = {call.id: call.name for call in result.message.tool_calls}
        self._care.turn_ended(committed, [*prompt.token_ids, *result.token_ids], calls)
        finished = msgspec.structs.replace(
            outcome.finished(committed.place.num_tokens),
            session_id=committed.session_id,
            version=committed.version,
            turn=committed.place.num_turns,
            tokens_committed=tokens_in(entries),
            conversation=ConversationEnd(key=key, session_id=committed.session_id, place=committed.place),
        )
        self._publish(committed, finished)
        if outcome.miss is not None:
            self._publish(committed, Missed(miss=outcome.miss))
        return finished


def _kept_on(keeping: Keeping, request: CompletionRequest, place: Place, now: float) -> Keeping:
    """How the session is kept after the turn."""
    after = keeping.after_turn(None)
    return after if request.retain is None else after.with_hint(request.retain, place.num_tokens, now=now)


def _field(request: CompletionRequest) -> str:
    return "messages" if isinstance(request.prompt, MessagesInput) else "prompt"
