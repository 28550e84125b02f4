"""Turns that were in hand when the engine crashed.

A client that gets an error sends its turn again; if that turn is what makes the engine crash, it would take everybody's
turns down for ever. So whoever was there at a crash is a suspect: suspects run one at a time, which the next crash then
tells apart, and one that was there twice is refused for a while.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec

from ...sessions.errors import RequestError
from .messages import SubmitTurn

CRASHES = 2  # so many, and a turn is refused
SECONDS = 900.0  # for so long, and so long a suspicion lasts
CAPACITY = 4096  # suspects that are remembered; the oldest are forgotten first


@dataclasses.dataclass(slots=True)
class _Suspect:
    crashes: int
    until: float


class Quarantine:
    """Remembers suspects by what they ask, since a retry is a new turn. One asyncio loop owns it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._suspects: OrderedDict[bytes, _Suspect] = OrderedDict()
        self._alone = asyncio.Lock()
        self.num_refused = 0

    @property
    def num_suspects(self) -> int:
        """Turns under suspicion, those refused included."""
        return len(self._suspects)

    def crashed(self, turns: Iterable[SubmitTurn]) -> None:
        """The engine crashed with ``turns`` in hand."""
        for turn in turns:
            key = _key(turn)
            suspect = self._suspects.pop(key, None) or _Suspect(0, 0.0)
            suspect.crashes += 1
            suspect.until = self._clock() + SECONDS
            self._suspects[key] = suspect
        while len(self._suspects) > CAPACITY:
            self._suspects.popitem(last=False)

    def done(self, turn: SubmitTurn) -> None:
        """``turn`` ended as it should: it is not what crashes the engine."""
        if self._suspects:
            self._suspects.pop(_key(turn), None)

    @asynccontextmanager
    async def admitted(self, turn: SubmitTurn) -> AsyncIterator[None]:
        """For the time of a turn; a suspect waits until no other one runs. Raises RequestError for one that was there
        at two crashes."""
        key = _key(turn) if self._suspects else None  # without suspects a long prompt need not be hashed
        if key is None or self._suspect(key) is None:
            yield
            return
        async with self._alone:
            self._check(key)
            yield

    def _suspect(self, key: bytes) -> _Suspect | None:
        suspect = self._suspects.get(key)
        if suspect is not None and suspect.until <= self._clock():
            del self._suspects[key]
            return None
        return suspect

    def _check(self, key: bytes) -> None:
        suspect = self._suspect(key)
        if suspect is not None and suspect.crashes >= CRASHES:
            self.num_refused += 1
            minutes = max(1, round((suspect.until - self._clock()) / 60))
            raise RequestError(
                f"the engine crashed {suspect.crashes} times while it ran this turn",
                field="prompt",
                remedy=f"change the turn, or send it again in {minutes} min; the server's log has the cause",
            )


def _key(turn: SubmitTurn) -> bytes:
    """Of what is asked; the seed, which the front may have drawn, does not count."""
    sampling = msgspec.structs.replace(turn.sampling, seed=None)
    asked = msgspec.msgpack.encode((turn.cache_salt, turn.token_ids, sampling))
    return hashlib.blake2b(asked, digest_size=16).digest()
