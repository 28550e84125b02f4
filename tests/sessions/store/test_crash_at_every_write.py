"""A crash at every write: the write-ahead log cut at each of its frames and inside them, and opened again.

What the disk holds after a crash is the log up to some point, since SQLite only appends to it and a commit returns
after its sync. So after each acknowledged change the log's length is noted; a log that is cut anywhere from there up to
the next such point must open to exactly the changes acknowledged so far.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import struct
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.sessions.copies.databases import require_sound
from sessile.sessions.keeping import Keeping, Retain
from sessile.sessions.session import START, AtToken, EntryKind, ModelIdentity, NewEntry, Session, SessionState
from sessile.sessions.store import Change, SessionStore, StoredAnswer, StoredResponse
from sessile.sessions.store.database import SessionDatabase

MODEL = ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t")
WAL_HEADER, FRAME_HEADER = 32, 24


@dataclass(frozen=True)
class Known:
    """All that was acknowledged: tokens, version and state by session; answers; retentions; responses."""

    sessions: dict[str, tuple[tuple[int, ...], int, bool]] = field(default_factory=dict)
    answers: frozenset[str] = frozenset()
    retained: frozenset[str] = frozenset()
    responses: frozenset[str] = frozenset()

    def with_session(self, session: Session, tokens: tuple[int, ...]) -> Known:
        is_open = session.state is SessionState.OPEN
        return replace(self, sessions={**self.sessions, session.session_id: (tokens, session.version, is_open)})


class Writer:
    """Makes changes and notes, behind each, how long the write-ahead log was and what was acknowledged by then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wal = folder / "sessions.db-wal"
        self.store = SessionStore(folder)
        self.store._writer.submit(_never_checkpoint).result()
        self.base = (folder / "sessions.db").read_bytes()
        self.known = Known()
        self.points: list[tuple[int, Known]] = [(self.wal.stat().st_size, self.known)]
        self._numbers = itertools.count(1)

    def acknowledged(self, known: Known) -> None:
        self.known = known
        self.points.append((self.wal.stat().st_size, known))

    async def open(self) -> None:
        session_id = f"ses_{next(self._numbers):03d}"
        session = Session(
            session_id=session_id, tenant="a", version=1, state=SessionState.OPEN, place=START, model=MODEL, system="s",
            tools=(), parent_session_id=None, created_at=1.0, updated_at=1.0,
        )  # fmt: skip
        made = await self.store.apply(Change(session=session, base_version=0))
        self.acknowledged(self.known.with_session(made, ()))

    async def turn(self, session_id: str, num_tokens: int, request_id: str | None) -> None:
        session = await self.session(session_id)
        number = next(self._numbers)
        tokens = tuple(range(number * 10_000, number * 10_000 + num_tokens))
        entries = (
            NewEntry(kind=EntryKind.PROMPT, token_ids=tokens[:1]),
            NewEntry(kind=EntryKind.OUTPUT, token_ids=tokens[1:]),
        )
        answer = None
        if request_id is not None:
            answer = StoredAnswer(
                scope=session_id, request_id=f"{request_id}{number}", request_digest=b"d", answer=b"a", created_at=1.0
            )
        after = session.advanced(entries, now=2.0)
        made = await self.store.apply(
            Change(
                session=after,
                base_version=session.version,
                entries=entries,
                answer=answer,
                conversation_keys=(bytes([number % 256]),),
            )
        )
        known = self.known.with_session(made, (*self.known.sessions[session_id][0], *tokens))
        if answer is not None:
            known = replace(known, answers=known.answers | {f"{session_id} {answer.request_id}"})
        self.acknowledged(known)

    async def fork(self, session_id: str, share: float) -> None:
        source = await self.session(session_id)
        tokens = self.known.sessions[session_id][0]
        count = round(share * len(tokens))
        place = (await self.store.log(source.place)).find(AtToken(count), "at")
        fork = source.forked(f"ses_{next(self._numbers):03d}", place, now=2.0)
        made = await self.store.apply(Change(session=fork, base_version=0))
        self.acknowledged(self.known.with_session(made, tokens[:count]))

    async def rollback(self, session_id: str, share: float) -> None:
        session = await self.session(session_id)
        tokens = self.known.sessions[session_id][0]
        count = round(share * len(tokens))
        after = session.moved((await self.store.log(session.place)).find(AtToken(count), "to"), now=2.0)
        made = await self.store.apply(Change(session=after, base_version=session.version))
        self.acknowledged(self.known.with_session(made, tokens[:count]))

    async def close(self, session_id: str) -> None:
        session = await self.session(session_id)
        made = await self.store.apply(Change(session=session.closed(now=2.0), base_version=session.version))
        self.acknowledged(self.known.with_session(made, self.known.sessions[session_id][0]))

    async def retain(self, session_id: str) -> None:
        await self.store.keep(session_id, lambda keeping: keeping.with_hint(Retain(priority=1), 0, now=1.0))
        self.acknowledged(replace(self.known, retained=self.known.retained | {session_id}))

    async def response(self, session_id: str) -> None:
        session = await self.session(session_id)
        if session.place.head is None:
            return
        response_id = f"resp_{next(self._numbers)}"
        await self.store.add_response(
            StoredResponse(
                tenant="a", response_id=response_id, session_id=session_id, place=session.place, key=b"k", body=b"b",
                created_at=1.0, expires_at=1e12,
            )
        )  # fmt: skip
        self.acknowledged(replace(self.known, responses=self.known.responses | {response_id}))

    async def together(self, session_ids: list[str]) -> None:
        """Turns of several sessions that one commit holds: all of them are acknowledged at its end, none before."""
        changes, tokens_of = [], {}
        for session_id in session_ids:
            session = await self.session(session_id)
            tokens = (next(self._numbers),) * 3
            entries = (NewEntry(kind=EntryKind.OUTPUT, token_ids=tokens),)
            tokens_of[session_id] = (*self.known.sessions[session_id][0], *tokens)
            changes.append(
                Change(session=session.advanced(entries, now=2.0), base_version=session.version, entries=entries)
            )
        known = self.known
        for made in await asyncio.wrap_future(self.store._writer.submit(lambda database: database.apply_all(changes))):
            assert isinstance(made, Session)
            known = known.with_session(made, tokens_of[made.session_id])
        self.acknowledged(known)

    async def session(self, session_id: str) -> Session:
        session = await self.store.session(session_id)
        assert session is not None
        return session

    def open_sessions(self) -> list[str]:
        return [session_id for session_id, (_, _, is_open) in self.known.sessions.items() if is_open]


def _never_checkpoint(database: SessionDatabase) -> None:
    database._database.conn.execute("PRAGMA wal_autocheckpoint = 0")


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("turn", "turn", "fork", "rollback", "close", "retain", "response", "open", "together")),
        st.integers(0, 7),
        st.floats(0, 1),
        st.sampled_from((2, 5, 3000)),  # of one page of the database, and of several
        st.none() | st.just("r"),
    ),
    min_size=4,
    max_size=8,
)  # fmt: skip


async def perform(writer: Writer, actions: list[tuple[str, int, float, int, str | None]]) -> None:
    await writer.open()
    for action, which, share, num_tokens, request_id in actions:
        there = writer.open_sessions()
        if action == "open" or not there:
            await writer.open()
            continue
        chosen = there[which % len(there)]
        match action:
            case "turn":
                await writer.turn(chosen, num_tokens, request_id)
            case "fork":
                await writer.fork(chosen, share)
            case "rollback":
                await writer.rollback(chosen, share)
            case "close":
                await writer.close(chosen)
            case "retain":
                await writer.retain(chosen)
            case "response":
                await writer.response(chosen)
            case _:
                await writer.together(there[:3])


async def found_in(folder: Path, asked: Known) -> Known:
    """What a store that is opened again knows of all that was ever acknowledged."""
    store = SessionStore(folder)
    try:
        known = Known()
        for session_id in asked.sessions:
            session = await store.session(session_id)
            if session is None:
                continue
            known = known.with_session(session, tuple((await store.log(session.place)).token_ids()))
            if session.keeping != Keeping():
                known = replace(known, retained=known.retained | {session_id})
        answers = [name for name in asked.answers if await store.answer(*name.split()) is not None]
        responses = [name for name in asked.responses if await store.response("a", name) is not None]
        return replace(known, answers=frozenset(answers), responses=frozenset(responses))
    finally:
        store.close()


def cuts(wal: bytes, rng: random.Random) -> list[int]:
    """Each frame's end, and somewhere in each frame: in its header, and in its page."""
    (page_bytes,) = struct.unpack(">I", wal[8:12])
    frame = FRAME_HEADER + page_bytes
    ends = range(WAL_HEADER, len(wal) + 1, frame)
    inside = [end + rng.choice((rng.randrange(1, FRAME_HEADER), rng.randrange(FRAME_HEADER, frame))) for end in ends]
    return sorted({0, WAL_HEADER - 1, *ends, *(cut for cut in inside if cut < len(wal))})


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=ACTIONS, seed=st.integers(0, 2**32))
def test_a_log_that_is_cut_anywhere_opens_to_exactly_what_was_acknowledged(
    actions: list[tuple[str, int, float, int, str | None]], seed: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-cut-") as parent:
        writer = Writer(Path(parent) / "written")
        asyncio.run(perform(writer, actions))
        wal, base, points = writer.wal.read_bytes(), writer.base, writer.points
        writer.store.close()
        rng = random.Random(seed)
        chosen = cuts(wal, rng)
        for number, cut in enumerate(chosen if len(chosen) < 40 else sorted(rng.sample(chosen, 40))):
            if cut < points[0][0]:
                continue
            rest = rng.choice((b"", bytes(5000), rng.randbytes(5000)))  # what a disk may have behind the last write
            folder = Path(parent) / f"cut-{number}"
            folder.mkdir()
            (folder / "sessions.db").write_bytes(base)
            (folder / "sessions.db-wal").write_bytes(wal[:cut] + rest)
            expected = [known for length, known in points if length <= cut][-1]
            assert asyncio.run(found_in(folder, points[-1][1])) == expected, f"cut at {cut} of {len(wal)}"
            require_sound(folder / "sessions.db")
            shutil.rmtree(folder)
