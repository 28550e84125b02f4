"""Sessions of clients that know none: each request brings a whole conversation, whose session is found here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from ..errors import SessionBusy, SessionNotFound
from ..keeping import Keeping
from ..messages import Message, Role, Tool
from ..session import START, EntryKind, LogPart, ModelIdentity, NewEntry, Place, Session, SessionLog, SessionState
from ..store import SessionStore
from .ports import Clock
from .replay import ConversationKeys, Key, client_key
from .requests import Client, ConversationEnd
from .running import Claim, RunningWork
from .views import new_session_id

_LAST_PARTS = 16  # eight turns: an agent's round of tool calls, as a rule


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation is continued: ``count`` of its messages are the log of ``session`` up to ``place``.

    ``foreign``: the session was made for another client, and is not to be advanced. ``chosen``: the client named the
    place.
    """

    session: Session
    place: Place
    count: int
    foreign: bool = False
    chosen: bool = False

    @property
    def is_open(self) -> bool:
        return self.session.state is SessionState.OPEN


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation that a client sent may be known by.

    ``keys``: one for each of its messages. ``grown``: the names that turns of sessions give, whose requests bring no
    arguments for the template. ``client`` as the client calls itself.
    """

    keys: Sequence[Key]
    grown: Sequence[Key]
    client: Client

    @property
    def all(self) -> tuple[list[Key], int]:
        """All names, those of longer beginnings last and the client's own last of each; how many each beginning has."""
        if not self.client.name:
            return [key for pair in zip(self.grown, self.keys, strict=True) for key in pair], 2
        own = [client_key(key, self.client.name) for key in self.keys]
        return [key for names in zip(self.grown, self.keys, own, strict=True) for key in names], 3


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a turn will advance, and the version it was made from (0: it is new)."""

    session: Session
    base_version: int
    claim: Claim | None = None

    def is_ending(self) -> None:
        """Say that nothing is left of the turn but its commit."""
        if self.claim is not None:
            self.claim.is_ending()


class Conversations:
    """Finds sessions by what their logs say, and holds one for each turn.

    The session whose log ends where the conversation is continued is advanced. Where it went on meanwhile, or is busy,
    the turn is a branch of its own: a fork. So it is where the session was made for another client.
    """

    def __init__(self, store: SessionStore, running: RunningWork, clock: Clock) -> None:
        self._store = store
        self._running = running
        self._clock = clock

    async def find(
        self, tenant: str, names: Names, after: ConversationEnd | None, identity: ModelIdentity
    ) -> Origin | None:
        """The session that holds the longest beginning, of several the client's own; ``after``, if it is one of the
        beginnings, before any other. The session may be closed; its tokens are what was said all the same."""
        chosen = after is not None and after.key in names.keys
        if after is not None and chosen:
            count, session_id, place = names.keys.index(after.key) + 1, after.session_id, after.place
        else:
            known_by, each = names.all
            found = await self._store.conversation(tenant, known_by)
            if found is None:
                return None
            count, session_id, place = found[0] // each + 1, found[1].session_id, found[1].place
        session = await self._store.session(session_id)
        if session is None or session.tenant != tenant or session.model != identity:
            return None
        foreign = bool(names.client.name) and await self._store.client_of(session_id) not in ("", names.client.name)
        return Origin(session=session, place=place, count=count, foreign=foreign, chosen=chosen)

    async def lineage_of(self, tenant: str, client: Client) -> str | None:
        """The session that a client's new conversation branches off from: the latest of the nearest name."""
        for name in client.lineage:
            if (session_id := await self._store.latest_of_client(tenant, name)) is not None:
                return session_id
        return None

    async def last_parts(self, place: Place) -> tuple[LogPart, ...]:
        """The latest entries up to ``place``, oldest first."""
        return await self._store.last_parts(place, _LAST_PARTS)

    async def log(self, place: Place) -> SessionLog:
        """The log up to ``place``."""
        return await self._store.log(place)

    @asynccontextmanager
    async def held(self, origin: Origin | None, fresh: Session, into: str | None) -> AsyncGenerator[Held, None]:
        """The session for a turn that continues ``origin`` (None: nothing), which nothing else changes meanwhile.

        ``fresh`` is the session to make where there is none; ``into`` names one that must be taken, whatever it said.

        Raises:
            SessionBusy: a turn is running in the session ``into``.
            SessionNotFound: it was closed.
        """
        async with AsyncExitStack() as stack:
            if into is not None:
                claim = await stack.enter_async_context(self._running.alone_in(into, None))
                yield await self._taken(origin, fresh, into, claim)
            elif origin is None:
                yield Held(session=fresh, base_version=0)
            else:
                yield await self._advanced_or_forked(origin, stack)

    async def _taken(self, origin: Origin | None, fresh: Session, session_id: str, claim: Claim) -> Held:
        session = await self._store.session(session_id)
        if session is None or session.tenant != fresh.tenant or session.state is SessionState.CLOSED:
            raise SessionNotFound(f"there is no open session {session_id!r}", field="conversation")
        continued = origin is not None and origin.session.session_id == session_id and origin.place == session.place
        if not continued:
            place = START if origin is None else origin.place
            session = msgspec.structs.replace(session, place=place, system=None, tools=fresh.tools)
        return Held(session=session, base_version=session.version, claim=claim)

    async def _advanced_or_forked(self, origin: Origin, stack: AsyncExitStack) -> Held:
        session_id = origin.session.session_id
        if origin.foreign:
            return self._forked(origin)
        trying = await stack.enter_async_context(AsyncExitStack())
        try:
            claim = await trying.enter_async_context(self._running.alone_in(session_id, None))
            session = await self._store.session(session_id)
            if session is not None and session.state is SessionState.OPEN and session.place == origin.place:
                return Held(session=session, base_version=session.version, claim=claim)
            await trying.aclose()
        except SessionBusy:
            pass
        return self._forked(origin)

    def _forked(self, origin: Origin) -> Held:
        now = self._clock()
        return Held(session=origin.session.forked(new_session_id(now), origin.place, now=now), base_version=0)

    def fresh(
        self,
        tenant: str,
        tools: Sequence[Tool],
        identity: ModelIdentity,
        keeping: Keeping,
        parent_session_id: str | None = None,
    ) -> Session:
        """A session with an empty log, not stored."""
        now = self._clock()
        return Session(
            session_id=new_session_id(now),
            tenant=tenant,
            version=0,
            state=SessionState.OPEN,
            place=START,
            model=identity,
            system=None,
            tools=tuple(tools),
            parent_session_id=parent_session_id,
            created_at=now,
            updated_at=now,
            keeping=keeping,
        )

    async def messages_at(self, place: Place, system: str | None = None) -> tuple[Message, ...]:
        """What a log says up to ``place``, behind the session's own system prompt."""
        said = [Message(role=Role.SYSTEM, content=system)] if system is not None else []
        for part in (await self._store.log(place)).parts:
            if part.whole or part.entry.kind is not EntryKind.OUTPUT:
                said += part.entry.messages
        return tuple(said)

    async def end_of(self, session: Session) -> tuple[tuple[Message, ...], ConversationEnd | None]:
        """What a session's log says, and the name of that conversation; no name for an empty log."""
        messages = await self.messages_at(session.place, session.system)
        if session.place.head is None or not messages:
            return messages, None
        keys = ConversationKeys(session.tenant, session.tools, {}).of(messages)
        return messages, ConversationEnd(key=keys[-1], session_id=session.session_id, place=session.place)


def grown_key(session: Session, log: SessionLog, entries: Sequence[NewEntry]) -> Key | None:
    """The name of what a session's log says with ``entries``; None where a part of it is no whole message."""
    messages = [Message(role=Role.SYSTEM, content=session.system)] if session.system is not None else []
    written = [(part.entry.kind, part.entry.messages if part.whole else None) for part in log.parts]
    written += [(entry.kind, entry.messages) for entry in entries]
    before = None
    for kind, said in written:
        continued = kind is EntryKind.OUTPUT and before is EntryKind.OUTPUT  # one answer, in two pieces
        if said is None or continued or (not said and kind is not EntryKind.PROMPT):
            return None
        messages += said
        before = kind
    return ConversationKeys(session.tenant, session.tools, None).of(messages)[-1]
