"""One atomic step of a session, as the store takes it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..keeping import Keeping
from ..session import NewEntry, Session
from .rows import StoredAnswer


class DuplicateRequest(Exception):
    """The request id was answered before, by a change that was made in the meantime."""


KeepingChange = Callable[[Keeping], Keeping]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic step: the session's next value, the entries that lead to it, and the answer to remember.

    ``base_version`` is the version that ``session`` was made from, 0 for a new session. With ``entries`` the head of
    ``session`` is still the old one; the store moves it to the last entry. How a session is kept may have changed since
    ``session`` was read: ``keep`` makes its next value from the one that holds now; only a new session brings its own.
    ``conversation_keys`` name what the session's log says afterwards, for clients that send all of it. ``inferred``: a
    new session belongs to such a client, which calls itself ``client`` (empty: it did not say).
    A new session is refused if its tenant opened ``most_open`` (0: any number).
    """

    session: Session
    base_version: int
    entries: tuple[NewEntry, ...] = ()
    answer: StoredAnswer | None = None
    keep: KeepingChange | None = None
    conversation_keys: tuple[bytes, ...] = ()
    inferred: bool = False
    client: str = ""
    most_open: int = 0
