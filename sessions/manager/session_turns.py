"""Turns of sessions: from a request and a session's log to committed tokens."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from ..errors import RequestError
from ..keeping import PersistencePolicy
from ..messages import Message
from ..session import EntryKind, NewEntry, Session, SessionLog, tokens_in
from ..store import Change
from . import answers, validation
from .conversations import grown_key
from .events import Happening, Missed, TurnStarted, failure_of
from .kv_care import KvCare
from .ports import Clock
from .records import SessionRecords
from .requests import Appended, AppendRequest, GenerateRequest, Mutation
from .running import Claim
from .turn import TurnResult
from .turn_accounts import account_of
from .turn_content import content_of_session
from .turn_events import Miss, TurnEvent, TurnFinished
from .turns import TurnPrompt, Turns, TurnTerms
from .views import view_of

logger = logging.getLogger(__name__)

Changed = Callable[[Session], None]
"""What to do once a change is on disk, with the session as it stands then."""


class SessionTurns:
    """Runs turns and appends, one at a time in a session: who may is for the caller to see to."""

    def __init__(
        self,
        records: SessionRecords,
        turns: Turns,
        care: KvCare,
        *,
        clock: Clock,
        policy: PersistencePolicy,
        publish: Callable[[Session, Happening], None],
    ) -> None:
        self._records = records
        self._turns = turns
        self._care = care
        self._clock = clock
        self._policy = policy
        self._publish = publish

    async def run(self, request: GenerateRequest, session: Session, claim: Claim) -> AsyncGenerator[TurnEvent, None]:
        """The turn's deltas, and its end once it is on disk. ``claim`` holds the session for it."""
        validation.require_tool_choice(request.tool_choice, session.tools)
        log = await self._continued(request, session)
        prompt = await self._turns.prompt(session, log, request)
        bound = await self._turns.with_required_calls(prompt.token_ids, request, session.tools)
        if prompt.in_chat:
            bound = await self._turns.with_thought(prompt.token_ids, bound)
        reading = (
            self._turns.message_reading(prompt.token_ids, bound, session.tools, prompt.answer_start)
            if prompt.in_chat
            else self._turns.plain_reading(bound)
        )
        terms = await self._begins(session, prompt, request)
        try:
            run = self._turns.run(prompt.token_ids, bound, reading, terms)
            observer = self._turns.observer
            content = partial(content_of_session, session, log, prompt.entry)
            observer.asked(run.turn, session.session_id, session.session_id, content)
            try:
                async with aclosing(run.deltas()) as deltas:
                    async for delta in deltas:
                        yield delta
            finally:
                claim.is_ending()
            miss = observer.miss_of(run.turn.turn_id)
            finished = await self._commit(request, session, log, prompt, run.result, miss)
        except BaseException as error:
            self._failed(session, error)
            raise
        yield finished

    async def _begins(
        self, session: Session, prompt: TurnPrompt, request: GenerateRequest | AppendRequest
    ) -> TurnTerms:
        """Everyone is told; what goes along with the prompt."""
        self._care.turn_begins(session, request.input)
        self._publish(session, TurnStarted(version=session.version, prompt_tokens=len(prompt.token_ids)))
        expected = session.keeping.expected_output if isinstance(request, GenerateRequest) else None
        return TurnTerms(
            tools=session.tools,
            persist=self._care.persists_turns(session),
            lifetime=self._care.lifetime(session),
            deadline_s=request.deadline_s,
            expected_token_ids=await self._turns.expected_tokens(expected),
            logged_tokens=prompt.logged_tokens,
        )

    def _failed(self, session: Session, error: BaseException) -> None:
        self._care.turn_failed(session)
        self._publish(session, failure_of(error))

    async def _commit(
        self,
        request: GenerateRequest,
        session: Session,
        log: SessionLog,
        prompt: TurnPrompt,
        result: TurnResult,
        miss: Miss | None,
    ) -> TurnFinished:
        said = (result.message,) if prompt.in_chat else ()
        output = NewEntry(kind=EntryKind.OUTPUT, token_ids=result.token_ids, messages=said)
        before = () if prompt.entry is None else (prompt.entry,)
        entries = (*before, output)
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
            miss=miss,
            tool_calls=result.message.tool_calls,
            reasoning_tokens=result.reasoning_tokens,
            stop_string=result.stop_string,
        )
        answer = answers.turn_answer(result, finished)
        accounted = msgspec.structs.replace(output, account=account_of(finished, after.updated_at))
        expected = session.keeping.expected_output
        key = await self._turns.tokenise(partial(grown_key, session, log, entries))
        change = Change(
            session=after,
            base_version=session.version,
            entries=(*before, accounted),
            keep=lambda keeping: keeping.after_turn(expected),
            conversation_keys=() if key is None else (key,),
        )
        _, committed = await self._records.commit(request, change, answer)
        if committed is not None:
            self._care.turn_ended(committed, [*prompt.token_ids, *result.token_ids], _calls_of(said))
            self._publish(committed, finished)
            if miss is not None:
                self._publish(committed, Missed(miss=miss))
        logger.debug(
            "turn %d: %d tokens, %s",
            finished.turn,
            finished.tokens_committed,
            finished.stop_cause,
            extra=_about(session),
        )
        return finished

    async def append(self, request: AppendRequest, session: Session) -> tuple[Change, Appended, Changed]:
        """Prefill new input; the change that adds it to the log, the answer, and what to do once it is on disk."""
        log = await self._continued(request, session)
        prompt = await self._turns.prompt(session, log, request)
        if prompt.entry is None:
            raise RequestError("there is nothing to append", field="input")
        terms = await self._begins(session, prompt, request)
        try:
            usage = await self._turns.prefill(prompt, request, terms)
        except BaseException as error:
            self._failed(session, error)
            raise
        after = session.advanced((prompt.entry,), now=self._clock())
        answer = Appended(
            session=view_of(after, self._policy), tokens_committed=len(prompt.entry.token_ids), usage=usage
        )
        change = Change(
            session=after,
            base_version=session.version,
            entries=(prompt.entry,),
            keep=lambda keeping: keeping.after_turn(None),
        )
        return change, answer, lambda committed: self._care.turn_ended(committed, prompt.token_ids, {})

    async def _continued(self, request: Mutation, session: Session) -> SessionLog:
        """The log, of a session that the served model may continue."""
        session.require_version(request.expected_version)
        session.model.require_same(self._turns.identity(self._turns.engine_info()))
        return await self._records.store.log(session.place)


def _about(session: Session) -> dict[str, str]:
    return {"session_id": session.session_id}


def _calls_of(said: Sequence[Message]) -> dict[str, str]:
    """Tool calls that an answer makes: names by id."""
    return {call.id: call.name for message in said for call in message.tool_calls}
