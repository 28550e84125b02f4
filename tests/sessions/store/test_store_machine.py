"""The store against plain lists: whatever is done, in whatever order, and reopened from disk after every step."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from sessile.sessions.errors import RequestError
from sessile.sessions.messages import Message, Role
from sessile.sessions.session import (
    START,
    AtToken,
    AtTurn,
    EntryKind,
    ModelIdentity,
    NewEntry,
    Session,
    SessionLog,
    SessionState,
)
from sessile.sessions.store import Change, DuplicateRequest, SessionStore, StoredAnswer

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6).map(tuple)
MODEL = ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t")


@dataclass(frozen=True)
class Plain:
    """What a session should be."""

    tokens: tuple[int, ...] = ()
    turn_ends: tuple[int, ...] = ()
    version: int = 1
    open: bool = True

    def upto(self, num_tokens: int) -> Plain:
        return replace(
            self, tokens=self.tokens[:num_tokens], turn_ends=tuple(end for end in self.turn_ends if end <= num_tokens)
        )


@dataclass
class Clock:
    now: float = 1000.0

    def tick(self) -> float:
        self.now += 1.0
        return self.now


@dataclass
class Expected:
    sessions: dict[str, Plain] = field(default_factory=dict)
    answers: dict[tuple[str, str], bytes] = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sessile-store-"))
        self.store = SessionStore(self.folder)
        self.expected = Expected()
        self.clock = Clock()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # -- what can be done -----------------------------------------------------------------------------------------

    @rule(target=sessions, system=st.none() | st.text(max_size=4))
    def open(self, system: str | None) -> str:
        session_id = f"ses_{len(self.expected.sessions):04d}"
        now = self.clock.tick()
        self.apply(
            Change(
                session=Session(
                    session_id=session_id,
                    tenant="a",
                    version=1,
                    state=SessionState.OPEN,
                    place=START,
                    model=MODEL,
                    system=system,
                    tools=({"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [None, 1.5]}}},),
                    parent_session_id=None,
                    created_at=now,
                    updated_at=now,
                ),
                base_version=0,
            )
        )
        self.expected.sessions[session_id] = Plain()
        return session_id

    @rule(session_id=sessions, entered=st.none() | TOKENS, said=TOKENS, request=st.none() | st.sampled_from("pqr"))
    def turn(
        self, session_id: str, entered: tuple[int, ...] | None, said: tuple[int, ...], request: str | None
    ) -> None:
        plain, session = self.both(session_id)
        if not plain.open:
            return
        output = NewEntry(
            kind=EntryKind.OUTPUT, token_ids=said, messages=(Message(role=Role.ASSISTANT, content="é\0"),)
        )
        entries = (output,) if entered is None else (NewEntry(kind=EntryKind.PROMPT, token_ids=entered), output)
        after = session.advanced(entries, now=self.clock.tick())
        change = Change(session=after, base_version=session.version, entries=entries)
        if request is not None and not self.answer(session_id, request, change):
            return
        if request is None:
            self.apply(change)
        tokens = (*plain.tokens, *(entered or ()), *said)
        self.expected.sessions[session_id] = Plain(tokens, (*plain.turn_ends, len(tokens)), plain.version + 1)

    @rule(session_id=sessions, tokens=TOKENS)
    def append(self, session_id: str, tokens: tuple[int, ...]) -> None:
        plain, session = self.both(session_id)
        if plain.open:
            entries = (NewEntry(kind=EntryKind.INPUT, token_ids=tokens),)
            after = session.advanced(entries, now=self.clock.tick())
            self.apply(Change(session=after, base_version=session.version, entries=entries))
            self.expected.sessions[session_id] = replace(plain, tokens=plain.tokens + tokens, version=plain.version + 1)

    @rule(target=sessions, session_id=sessions, share=st.floats(0, 1))
    def fork(self, session_id: str, share: float) -> object:
        plain, session = self.both(session_id)
        if not plain.open:
            return multiple()
        count = round(share * len(plain.tokens))
        place = self.log(session).find(AtToken(count), "at")
        fork_id = f"ses_{len(self.expected.sessions):04d}"
        self.apply(Change(session=session.forked(fork_id, place, now=self.clock.tick()), base_version=0))
        self.expected.sessions[fork_id] = replace(plain.upto(count), version=1)
        return fork_id

    @rule(session_id=sessions, share=st.floats(0, 1), by_turn=st.booleans())
    def rollback(self, session_id: str, share: float, by_turn: bool) -> None:
        plain, session = self.both(session_id)
        if not plain.open:
            return
        count = round(share * len(plain.tokens))
        point: AtToken | AtTurn = AtToken(count)
        if by_turn:
            turn = round(share * len(plain.turn_ends))
            point, count = AtTurn(turn), (0, *plain.turn_ends)[turn]
        after = session.moved(self.log(session).find(point, "to"), now=self.clock.tick())
        self.apply(Change(session=after, base_version=session.version))
        self.expected.sessions[session_id] = replace(plain.upto(count), version=plain.version + 1)

    @rule(session_id=sessions)
    def close(self, session_id: str) -> None:
        plain, session = self.both(session_id)
        if plain.open:
            self.apply(Change(session=session.closed(now=self.clock.tick()), base_version=session.version))
            self.expected.sessions[session_id] = replace(plain, open=False, version=plain.version + 1)

    @precondition(lambda self: any(not plain.open for plain in self.expected.sessions.values()))
    @rule()
    def prune(self) -> None:
        """Closed sessions go, with their answers; entries that others still use stay."""
        now = self.clock.tick()
        asyncio.run(self.store.prune(now))
        closed = {session_id for session_id, plain in self.expected.sessions.items() if not plain.open}
        for session_id in closed:
            assert asyncio.run(self.store.session(session_id)) is None
            self.expected.sessions[session_id] = Plain(open=False, version=-1)
        self.expected.answers.clear()
        assert asyncio.run(self.store.prune(now)) == 0

    # -- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_on_disk(self) -> None:
        self.store.close()
        self.store = SessionStore(self.folder)
        for session_id, plain in self.expected.sessions.items():
            if plain.version > 0:
                self.check(session_id, plain)
        listed = asyncio.run(self.store.sessions("a", limit=1000))
        assert [session.session_id for session in listed] == sorted(
            session_id for session_id, plain in self.expected.sessions.items() if plain.open
        )
        for (scope, request_id), answer in self.expected.answers.items():
            stored = asyncio.run(self.store.answer(scope, request_id))
            assert stored is not None
            assert stored.answer == answer

    def check(self, session_id: str, plain: Plain) -> None:
        session = asyncio.run(self.store.session(session_id))
        assert session is not None
        assert (session.version, session.state is SessionState.OPEN) == (plain.version, plain.open)
        assert (session.place.num_tokens, session.place.num_turns) == (len(plain.tokens), len(plain.turn_ends))
        log = self.log(session)
        assert log.token_ids() == list(plain.tokens)
        assert log.place == session.place
        for turn, end in enumerate((0, *plain.turn_ends)):
            assert log.find(AtTurn(turn), "at").num_tokens == end
        try:
            log.find(AtTurn(len(plain.turn_ends) + 1), "at")
        except RequestError:
            pass
        else:
            raise AssertionError("a turn past the end was found")

    # -- steps ----------------------------------------------------------------------------------------------------

    def both(self, session_id: str) -> tuple[Plain, Session]:
        plain = self.expected.sessions[session_id]
        session = asyncio.run(self.store.session(session_id))
        if session is None:
            assert plain.version == -1
            return plain, None  # type: ignore[return-value]
        return plain, session

    def log(self, session: Session) -> SessionLog:
        return asyncio.run(self.store.log(session.place))

    def apply(self, change: Change) -> None:
        after = asyncio.run(self.store.apply(change))
        assert after.place.num_tokens == change.session.place.num_tokens

    def answer(self, scope: str, request_id: str, change: Change) -> bool:
        """Apply a change that answers a request; False if the request was answered before."""
        answer = f"{scope} {request_id} {change.session.version}".encode()
        stored = StoredAnswer(
            scope=scope, request_id=request_id, request_digest=b"d", answer=answer, created_at=self.clock.tick()
        )
        try:
            self.apply(msgspec.structs.replace(change, answer=stored))
        except DuplicateRequest:
            assert (scope, request_id) in self.expected.answers
            return False
        assert (scope, request_id) not in self.expected.answers
        self.expected.answers[scope, request_id] = answer
        return True


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
