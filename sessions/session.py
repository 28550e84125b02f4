"""What a session is, and its rules: pure values, no input or output.

A session's truth is a log of tokens. The log is a path through a tree of entries that are never rewritten::

    entry 1 (input, 40 tokens) ── entry 2 (output, 12) ── entry 3 (input, 9) ── entry 4 (output, 20)
                                        └── used up to token 5 ── entry 5 (input, 7)

An entry names its parent and how many of the parent's tokens it continues. A session is a *head* (an entry, and how
many of its tokens count) and a version. A fork is another head on the same entries; a rollback moves the head back;
a turn adds entries and moves it forward. Each of them makes a new value here, which the store then makes durable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

from .errors import ModelChanged, RequestError, StaleVersion
from .keeping import NOTHING_SAID, Keeping
from .messages import Message, Tool


class EntryKind(enum.IntEnum):
    """Who wrote the tokens of an entry, and what they leave open."""

    INPUT = 0  # whole messages, or text or tokens as the caller gave them
    PROMPT = 1  # messages and the beginning of the answer to them, as a template writes it
    OUTPUT = 2  # sampled: replayed exactly, never rendered again


class SessionState(enum.StrEnum):
    """Whether a session still takes turns."""

    OPEN = "open"
    CLOSED = "closed"


class Head(msgspec.Struct, frozen=True):
    """A point in the tree: the first ``used`` (at least 1) tokens of an entry, and all before them."""

    entry_id: int
    used: int


class NewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry before the store gave it an id. ``messages``: what its tokens say, empty where that is not known.

    ``account``: what is to be remembered of how it came to be; no part of the log, and for its writer to read.
    """

    kind: EntryKind
    token_ids: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    account: bytes = b""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A stored run of tokens.

    ``start`` counts the tokens before it on its path. ``turn``: for an output its own number, from 1; for others the
    turns finished before it.
    """

    entry_id: int
    parent: Head | None
    kind: EntryKind
    start: int
    turn: int
    token_ids: tuple[int, ...]
    messages: tuple[Message, ...]


class LogPart(msgspec.Struct, frozen=True):
    """The first ``used`` tokens of an entry, as one session's path uses them."""

    entry: Entry
    used: int

    @property
    def whole(self) -> bool:
        return self.used == len(self.entry.token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.entry.token_ids if self.whole else self.entry.token_ids[: self.used]

    @property
    def end(self) -> int:
        """Tokens of the path up to and including this part."""
        return self.entry.start + self.used

    @property
    def turns_finished(self) -> int:
        """Turns of the path that are complete at this part's end; an output cut short is not a finished turn."""
        cut_output = self.entry.kind is EntryKind.OUTPUT and not self.whole
        return self.entry.turn - 1 if cut_output else self.entry.turn

    @property
    def head(self) -> Head:
        return Head(self.entry.entry_id, self.used)


class AtTurn(msgspec.Struct, frozen=True, tag="turn"):
    """Just after the answer of turn ``turn`` (from 1); 0 is the empty log of a session just opened."""

    turn: int


class AtToken(msgspec.Struct, frozen=True, tag="token"):
    """After the first ``token`` tokens of the log; 0 is the empty log."""

    token: int


Point = AtTurn | AtToken


def turns_in(entries: Iterable[NewEntry]) -> int:
    """How many turns these entries finish."""
    return sum(entry.kind is EntryKind.OUTPUT for entry in entries)


def tokens_in(entries: Iterable[NewEntry]) -> int:
    """How many tokens these entries hold."""
    return sum(len(entry.token_ids) for entry in entries)


class Place(msgspec.Struct, frozen=True):
    """Where a point lies: the head, the tokens up to it, and the turns finished there."""

    head: Head | None
    num_tokens: int
    num_turns: int


START = Place(None, 0, 0)


class SessionLog(msgspec.Struct, frozen=True):
    """The path of one session, from the first entry to the head."""

    parts: tuple[LogPart, ...]

    @property
    def num_tokens(self) -> int:
        return self.parts[-1].end if self.parts else 0

    @property
    def place(self) -> Place:
        """The place of the log's end."""
        if not self.parts:
            return START
        last = self.parts[-1]
        return Place(last.head, last.end, last.turns_finished)

    def token_ids(self) -> list[int]:
        """All tokens, oldest first."""
        return [token for part in self.parts for token in part.token_ids]

    def find(self, point: Point, field: str) -> Place:
        """The place of a point.

        Raises:
            RequestError: the point lies before the start or after the end; ``field`` names the input.
        """
        match point:
            case AtTurn(turn):
                return self._find_turn(turn, f"{field}.turn")
            case AtToken(token):
                return self._find_token(token, f"{field}.token")

    def _find_turn(self, turn: int, field: str) -> Place:
        last_turn = self.place.num_turns
        if not 0 <= turn <= last_turn:
            raise RequestError(
                f"there is no turn {turn} in this session", field=field, remedy=f"it must be from 0 to {last_turn}"
            )
        if turn == 0:
            return START
        part = next(part for part in self._finished_turns() if part.turns_finished == turn)
        return Place(part.head, part.end, turn)

    def _finished_turns(self) -> Iterator[LogPart]:
        return (part for part in reversed(self.parts) if part.entry.kind is EntryKind.OUTPUT and part.whole)

    def _find_token(self, token: int, field: str) -> Place:
        if not 0 <= token <= self.num_tokens:
            raise RequestError(
                f"there is no token {token} in this session",
                field=field,
                remedy=f"it must be from 0 to {self.num_tokens}",
            )
        if token == 0:
            return START
        part = next(part for part in self.parts if token <= part.end)
        cut = LogPart(part.entry, token - part.entry.start)
        return Place(cut.head, token, cut.turns_finished)


EMPTY_LOG = SessionLog(())


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which model and tokenizer a session's tokens belong to."""

    name: str
    model_fingerprint: str
    tokenizer_fingerprint: str

    def require_same(self, served: ModelIdentity) -> None:
        """Raise ModelChanged unless tokens of this identity may be continued by ``served``."""
        for what, mine, theirs in (
            ("model", self.model_fingerprint, served.model_fingerprint),
            ("tokenizer", self.tokenizer_fingerprint, served.tokenizer_fingerprint),
        ):
            if mine != theirs:
                raise ModelChanged(
                    f"the session was written with another {what} ({self.name}) than is served now ({served.name})",
                    session_fingerprint=mine,
                    server_fingerprint=theirs,
                )


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One session at one version. Times are seconds since the epoch. ``keeping`` changes without a new version."""

    session_id: str
    tenant: str
    version: int
    state: SessionState
    place: Place
    model: ModelIdentity
    system: str | None
    tools: tuple[Tool, ...]
    parent_session_id: str | None
    created_at: float
    updated_at: float
    keeping: Keeping = NOTHING_SAID

    def require_version(self, expected: int | None) -> None:
        """Raise StaleVersion unless ``expected`` is None or this version."""
        if expected is not None and expected != self.version:
            raise StaleVersion(
                f"the session is at version {self.version}, not {expected}", expected=expected, actual=self.version
            )

    def moved(self, place: Place, *, now: float) -> Session:
        """The next version, with its head at ``place``."""
        return msgspec.structs.replace(self, version=self.version + 1, place=place, updated_at=now)

    def advanced(self, entries: tuple[NewEntry, ...], *, now: float) -> Session:
        """The next version, with ``entries`` added; their ids, and so the head, are the store's to give."""
        before = self.place
        place = Place(before.head, before.num_tokens + tokens_in(entries), before.num_turns + turns_in(entries))
        return self.moved(place, now=now)

    def closed(self, *, now: float) -> Session:
        """The last version."""
        return msgspec.structs.replace(self, version=self.version + 1, state=SessionState.CLOSED, updated_at=now)

    def forked(self, session_id: str, place: Place, *, now: float) -> Session:
        """A new session on the same entries, at version 1."""
        return msgspec.structs.replace(
            self,
            session_id=session_id,
            version=1,
            place=place,
            parent_session_id=self.session_id,
            created_at=now,
            updated_at=now,
            keeping=self.keeping.of_fork(),
        )
