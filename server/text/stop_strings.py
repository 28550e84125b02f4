"""Stop strings in a stream of text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...sessions.errors import RequestError

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 256  # of one string


def validate_stop_strings(stop: Sequence[str], field: str = "stop") -> None:
    """Raise RequestError naming ``field`` if there are too many strings, or one is empty or too long."""
    if len(stop) > MAX_STOP_STRINGS:
        raise RequestError(
            f"{len(stop)} stop strings", field=field, remedy=f"at most {MAX_STOP_STRINGS} are watched for"
        )
    for index, text in enumerate(stop):
        if not text:
            raise RequestError("a stop string is empty", field=f"{field}[{index}]", remedy="leave it out")
        if len(text) > MAX_STOP_CHARACTERS:
            raise RequestError(
                f"a stop string has {len(text)} characters",
                field=f"{field}[{index}]",
                remedy=f"it may have {MAX_STOP_CHARACTERS}",
            )


class StopStrings:
    """Watches for the stop string that is complete first, and holds back text that may be the beginning of one.

    An automaton after Aho and Corasick (1975): a character costs the same however many strings there are, and the
    result does not depend on how the text is cut into pieces. Where two strings end at the same character the longer
    one counts.

    Raises:
        RequestError: see ``validate_stop_strings``.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        validate_stop_strings(stop)
        self._edges: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match_length = [0]  # of the longest stop string that ends in a state
        for text in stop:
            self._add(text)
        self._fallback = self._link()
        self._state = 0
        self._held = ""
        self._stopped = False
        self.matched: str | None = None  # the string that is complete

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to emit, and whether a stop string is complete; what follows it is dropped."""
        if self._stopped:
            return "", True
        pending = self._held + text
        for index, character in enumerate(text):
            self._state = self._next(self._state, character)
            length = self._match_length[self._state]
            if length:
                self._stopped, end = True, len(self._held) + index + 1
                self._held = ""
                self.matched = pending[end - length : end]
                return pending[: end - length], True
        safe = len(pending) - self._depth[self._state]
        self._held = pending[safe:]
        return pending[:safe], False

    def flush(self) -> str:
        """The text held back; the stream ended without a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, text: str) -> None:
        state = 0
        for character in text:
            following = self._edges[state].get(character)
            if following is None:
                following = len(self._edges)
                self._edges[state][character] = following
                self._edges.append({})
                self._depth.append(self._depth[state] + 1)
                self._match_length.append(0)
            state = following
        self._match_length[state] = len(text)

    def _link(self) -> list[int]:
        """For each state the state of its longest proper suffix, breadth first."""
        self._fallback = [0] * len(self._edges)
        queue = deque(self._edges[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self._edges[state].items():
                suffix = self._next(self._fallback[state], character)
                self._fallback[following] = suffix
                if not self._match_length[following]:
                    self._match_length[following] = self._match_length[suffix]
                queue.append(following)
        return self._fallback

    def _next(self, state: int, character: str) -> int:
        while state and character not in self._edges[state]:
            state = self._fallback[state]
        return self._edges[state].get(character, 0)
