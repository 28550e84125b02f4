"""PL704 and PL705: what only token ids show."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ..findings import Severity
from ..prompt import Prompt, token_ids
from .base import Verdict

Decoder = Callable[[list[int]], str | None]


class DuplicateBos:
    """A prompt that starts with two start tokens."""

    code: ClassVar[str] = "PL705"

    def judge_one(self, ids: list[int], bos: int | None) -> bool:
        """True when the prompt itself starts with two start tokens."""
        return len(ids) >= 2 and ids[0] == ids[1] and bos is not None and ids[0] == bos

    def judge(self, previous: list[int], current: list[int], bos: int | None) -> Verdict | None:
        """A verdict when one prompt has the start token twice and the other once."""
        doubles = [
            len(ids) >= 2 and ids[0] == ids[1] and ids[0] == (ids[0] if bos is None else bos)
            for ids in (previous, current)
        ]
        if doubles[0] == doubles[1] or previous[:1] != current[:1]:
            return None
        double, single = (previous, current) if doubles[0] else (current, previous)
        shared = min(len(double) - 2, len(single) - 1, 32)
        if bos is None and double[2 : 2 + shared] != single[1 : 1 + shared]:
            return None
        return Verdict(self.code, "the start token stands twice", floor=Severity.ERROR, needs_loss=False)


class RetokenisationDrift:
    """The same text in other tokens."""

    code: ClassVar[str] = "PL704"

    def judge(self, previous: Prompt, current: Prompt, at: int, decode: Decoder) -> Verdict | None:
        """A verdict when the tokens differ and what they spell does not."""
        was = token_ids(previous.request.body) + (previous.request.response_token_ids or [])
        now = token_ids(current.request.body)
        same = self._same_text(was[at:], now[at:], decode)
        in_response = at >= len(token_ids(previous.request.body))
        if same or (same is None and in_response and self._texts_agree(previous, current)):
            return Verdict(
                self.code,
                "generated tokens differ from the tokens of the same text",
                cap=Severity.INFO,
                needs_loss=False,
            )
        return None

    @staticmethod
    def _same_text(was: list[int], now: list[int], decode: Decoder) -> bool | None:
        """True or false where the vocabulary is known, None where it is not."""
        first = decode(was)
        if first is None:
            return None
        for end in range(1, len(now) + 1):
            second = decode(now[:end])
            if second is None:
                return None
            if len(second) >= len(first):
                return second == first
        return False

    @staticmethod
    def _texts_agree(previous: Prompt, current: Prompt) -> bool:
        was, now = (str(p.request.body.get("text") or "") for p in (previous, current))
        return bool(was) and now.startswith(was)
