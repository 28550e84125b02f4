"""Turns of clients that know no session: each request brings all of a conversation, or a text that nobody keeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from ...server.engine.messages import EngineReady
from ..errors import ContextOverflow, RequestError, StoreUnavailable
from ..keeping import NOTHING_SAID, Keeping
from ..messages import Message, Role
from ..session import EntryKind, NewEntry, Place, Session, tokens_in
from ..store import Change, SessionStore
from . import validation
from .conversations import Conversations, Held, Names, Origin
from .events import Happening, Missed, TurnStarted, failure_of
from .kv_care import KvCare
from .ports import Clock
from .replay import ConversationKeys, Key, RecordedCalls, ReplayMemory, client_key, place_key
from .requests import (
    CompletionEvent,
    CompletionRequest,
    ConversationEnd,
    MessagesInput,
    Miss,
    Replay,
    TextInput,
    TokenIdsInput,
    TurnBegun,
    TurnFinished,
)
from .running import RunningWork
from .transport_lines import neutralised
from .turn import TurnResult, TurnRun
from .turn_content import content_of_request
from .turns import Turns, TurnTerms, computed_before

logger = logging.getLogger(__name__)

Publish = Callable[[Session, Happening], None]


class _Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's tokens. For a conversation also its key, that of the remembered one it grew out of, the session that
    holds the beginning, how many tokens that is, and the messages that are new. ``rewritten``: answers that the
    template would have written otherwise."""

    token_ids: list[int]
    key: Key | None = None
    grew_from: Key | None = None
    replayed_tokens: int = 0
    conversation: str = ""
    origin: Origin | None = None
    new: Sequence[Message] = ()
    neutralised: tuple[str, ...] = ()
    rewritten: Awaitable[int] | None = None

    @property
    def logged_tokens(self) -> int:
        return computed_before(self.replayed_tokens)

    @property
    def new_token_ids(self) -> list[int]:
        return self.token_ids if self.origin is None else self.token_ids[self.origin.place.num_tokens :]


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The longest beginning of a conversation whose tokens are recorded: how many messages, the tokens, the name under
    which memory has them, and the session that holds it, if one does."""

    count: int = 0
    token_ids: list[int] = []
    key: Key | None = None
    origin: Origin | None = None


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
        self._replay = replay
        self._store = store
        self._running = running
        self._care = care
        self._clock = clock
        self._publish = publish
        self._keep = keep
        self._calls = RecordedCalls()
        self.conversations = Conversations(store, running, clock)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """The turn's session if it has one, its deltas and its end."""
        with self._running.admitted():
            engine = self._turns.engine_info()
            validation.require_completion(request, engine)
            self._turns.require_model(request.model)
            await self._turns.check_grammar(request.sampling.grammar, "grammar")
            keys = ConversationKeys(request.tenant, request.tools, request.template_arguments)
            try:
                prompt = await self._prompt(request, keys, engine)
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
        return (await self._prompt(request, keys, engine)).token_ids

    def _can_be_kept(self, request: CompletionRequest) -> bool:
        """Whether the store takes changes. A client that named the session to go on in is refused instead."""
        if request.session_id is not None:
            self._store.require_writable()
        return self._store.failure is None

    async def _unkept(
        self, request: CompletionRequest, keys: ConversationKeys, prompt: _Prompt
    ) -> AsyncGenerator[CompletionEvent, None]:
        terms = TurnTerms(
            tools=request.tools,
            logged_tokens=prompt.logged_tokens,
            persist=self._care.persists_turns(None),
            lifetime=self._care.lifetime(None),
        )
        run = await self._run(request, prompt, terms)
        self._turns.observer.asked(
            run.turn, prompt.conversation, request.client_session, partial(content_of_request, request)
        )
        yield TurnBegun(session_id="", prompt_tokens=len(prompt.token_ids))
        async with aclosing(run.deltas()) as deltas:
            async for delta in deltas:
                yield delta
        self._calls.remember(request.tenant, run.result.message)
        if prompt.key is not None:
            key = keys.after(prompt.key, run.result.message)
            self._remember(request, key, prompt, run.result)
        miss = self._turns.observer.miss_of(run.turn.turn_id)
        replay = await _replay_of(prompt)
        yield _finished(run.result, miss, replay, num_tokens=len(prompt.token_ids) + len(run.result.token_ids))

    async def _kept(
        self, request: CompletionRequest, keys: ConversationKeys, prompt: _Prompt
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
        self, request: CompletionRequest, keys: ConversationKeys, prompt: _Prompt, held: Held
    ) -> AsyncGenerator[CompletionEvent, None]:
        terms = TurnTerms(
            tools=request.tools,
            logged_tokens=prompt.logged_tokens,
            persist=self._care.persists_turns(held.session),
            lifetime=self._care.lifetime(held.session),
            owner=held.session.session_id,
        )
        run = await self._run(request, prompt, terms)
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
        self._calls.remember(request.tenant, run.result.message)
        miss = self._turns.observer.miss_of(run.turn.turn_id)
        try:
            yield await self._commit(request, keys, prompt, held, run.result, miss)
        except StoreUnavailable as error:
            if request.session_id is not None:
                raise
            logger.warning("a turn was answered and not kept: %s", error)
            if prompt.key is not None:
                self._remember(request, keys.after(prompt.key, run.result.message), prompt, run.result)
            num_tokens = len(prompt.token_ids) + len(run.result.token_ids)
            yield _finished(run.result, miss, await _replay_of(prompt), num_tokens=num_tokens)

    async def _run(self, request: CompletionRequest, prompt: _Prompt, terms: TurnTerms) -> TurnRun:
        bound = await self._turns.with_required_calls(prompt.token_ids, request, request.tools)
        if prompt.key is not None:
            bound = await self._turns.with_thought(prompt.token_ids, bound)
        reading = (
            self._turns.plain_reading(bound)
            if prompt.key is None
            else self._turns.message_reading(prompt.token_ids, bound, request.tools)
        )
        return self._turns.run(prompt.token_ids, bound, reading, terms)

    async def _commit(
        self,
        request: CompletionRequest,
        keys: ConversationKeys,
        prompt: _Prompt,
        held: Held,
        result: TurnResult,
        miss: Miss | None,
    ) -> TurnFinished:
        assert prompt.key is not None
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
        replay = await _replay_of(prompt)
        committed = await self._store.apply(change)
        self._remember(request, place_key(committed.place), prompt, result)
        calls = {call.id: call.name for call in result.message.tool_calls}
        self._care.turn_ended(committed, [*prompt.token_ids, *result.token_ids], calls)
        finished = msgspec.structs.replace(
            _finished(result, miss, replay, num_tokens=committed.place.num_tokens),
            session_id=committed.session_id,
            version=committed.version,
            turn=committed.place.num_turns,
            tokens_committed=tokens_in(entries),
            conversation=ConversationEnd(key=key, session_id=committed.session_id, place=committed.place),
        )
        self._publish(committed, finished)
        if miss is not None:
            self._publish(committed, Missed(miss=miss))
        return finished

    async def _prompt(self, request: CompletionRequest, keys: ConversationKeys, engine: EngineReady) -> _Prompt:
        prompts, limit = self._turns.prompts, engine.context_length
        match request.prompt:
            case TokenIdsInput(token_ids):
                return _Prompt(token_ids=list(token_ids))
            case TextInput(text):
                return _Prompt(token_ids=list(await self._turns.tokenise(lambda: prompts.completion(text, limit))))
            case MessagesInput():
                return await self._conversation(request, request.prompt, keys, engine)

    async def _conversation(
        self, request: CompletionRequest, conversation: MessagesInput, keys: ConversationKeys, engine: EngineReady
    ) -> _Prompt:
        prompts, limit = self._turns.prompts, engine.context_length
        sent = neutralised(conversation.messages)
        messages = tuple(self._calls.recorded(request.tenant, message) for message in sent.messages)
        message_keys, grown = await self._turns.tokenise(lambda: _names(request, keys, messages))
        named = _conversation_name(request, messages, message_keys)
        names = Names(keys=message_keys[:-1], grown=grown[:-1], client=request.client)
        known = await self._known(request, names, engine)
        if known.count:
            continued = await self._continuation(request, messages[known.count :], known.token_ids, limit)
            if continued is not None:
                origin = known.origin if known.origin is not None and known.origin.is_open else None
                return _Prompt(
                    token_ids=continued,
                    key=message_keys[-1],
                    grew_from=known.key,
                    replayed_tokens=len(known.token_ids),
                    origin=origin,
                    new=messages[known.count :] if origin is not None else messages,
                    conversation=named,
                    neutralised=sent.names,
                    rewritten=await self._rewritten(request, sent.messages, known),
                )
        whole = await self._turns.tokenise(
            lambda: prompts.prompt(messages, request.tools, request.template_arguments, limit)
        )
        return _Prompt(
            token_ids=list(whole),
            key=message_keys[-1],
            new=messages,
            conversation=named,
            neutralised=sent.names,
        )

    async def _known(self, request: CompletionRequest, names: Names, engine: EngineReady) -> _Known:
        """Memory knows conversations that are not kept, too; the store knows those from before a restart."""
        tenant, identity = request.tenant, self._turns.identity(engine)
        origin = await self.conversations.find(tenant, names, request.after, identity)
        if origin is not None and origin.chosen:
            return await self._logged(tenant, origin)
        count, token_ids = self._replay.tokens_after(tenant, names.keys)
        if origin is not None and origin.count >= count:
            return await self._logged(tenant, origin)
        return _Known(count=count, token_ids=token_ids, key=names.keys[count - 1] if count else None)

    async def _logged(self, tenant: str, origin: Origin) -> _Known:
        """What a session holds; memory has its tokens unless they were pushed out, or are from before a restart."""
        key = place_key(origin.place)
        token_ids = self._replay.tokens(tenant, key)
        if token_ids is None:
            token_ids = (await self.conversations.log(origin.place)).token_ids()
        return _Known(count=origin.count, token_ids=token_ids, key=key, origin=origin)

    async def _rewritten(
        self, request: CompletionRequest, sent: Sequence[Message], known: _Known
    ) -> Awaitable[int] | None:
        """Begin to look at what the template would have made of the latest answers; the turn need not wait for it."""
        if known.origin is None:
            return None
        parts = await self.conversations.last_parts(known.origin.place)
        num_messages = sum(len(part.entry.messages) for part in parts)
        recent = sent[max(0, known.count - num_messages) :]
        prompts = self._turns.prompts
        return asyncio.ensure_future(
            self._turns.tokenise(
                lambda: prompts.rewritten_answers(parts, recent, request.tools, request.template_arguments)
            )
        )

    async def _continuation(
        self, request: CompletionRequest, new: Sequence[Message], remembered: list[int], limit: int
    ) -> list[int] | None:
        """Remembered tokens and those of the new messages; None where the template can only render from the start."""
        try:
            following = await self._turns.tokenise(
                lambda: self._turns.prompts.prompt_after_answer(
                    new, request.tools, request.template_arguments, remembered[-1], limit
                )
            )
        except ContextOverflow:
            raise
        except RequestError:
            return None
        return remembered + list(following)

    def _remember(self, request: CompletionRequest, key: Key, prompt: _Prompt, result: TurnResult) -> None:
        self._replay.remember(request.tenant, key, prompt.grew_from, [*prompt.token_ids, *result.token_ids])


def _names(
    request: CompletionRequest, keys: ConversationKeys, messages: Sequence[Message]
) -> tuple[list[Key], list[Key]]:
    """Names of a conversation's beginnings: those of requests like this one, and those that sessions' turns give."""
    return keys.of(messages), ConversationKeys(request.tenant, request.tools, None).of(messages)


async def _replay_of(prompt: _Prompt) -> Replay:
    return Replay(
        replayed_tokens=prompt.replayed_tokens,
        rewritten_answers=0 if prompt.rewritten is None else await prompt.rewritten,
        neutralised=prompt.neutralised,
    )


def _kept_on(keeping: Keeping, request: CompletionRequest, place: Place, now: float) -> Keeping:
    """How the session is kept after the turn."""
    after = keeping.after_turn(None)
    return after if request.retain is None else after.with_hint(request.retain, place.num_tokens, now=now)


def _conversation_name(request: CompletionRequest, messages: Sequence[Message], keys: Sequence[Key]) -> str:
    """The client's own name for it, else one for all conversations that begin with the same user's message."""
    if request.client_session:
        return request.client_session
    first = next((index for index, message in enumerate(messages) if message.role is Role.USER), len(messages) - 1)
    return f"chat-{keys[first].hex()[:16]}"


def _finished(result: TurnResult, miss: Miss | None, replay: Replay, *, num_tokens: int) -> TurnFinished:
    return TurnFinished(
        finish_reason=result.finish_reason,
        stop_cause=result.stop_cause,
        usage=result.usage,
        num_tokens=num_tokens,
        miss=miss,
        replay=replay,
        tool_calls=result.message.tool_calls,
        reasoning_tokens=result.reasoning_tokens,
        stop_string=result.stop_string,
    )


def _field(request: CompletionRequest) -> str:
    return "messages" if isinstance(request.prompt, MessagesInput) else "prompt"
