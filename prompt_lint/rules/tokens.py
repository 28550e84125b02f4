"""PL704 and PL705: what only token ids show."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar

from ..findings import Severity
from ..prompt import Prompt, token_ids
from .base import Verdict

_COMPARED = 256
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
        was = [*token_ids(previous.request.body), *(previous.request.response_token_ids or ())]
        same = _same_text(was[at:], token_ids(current.request.body)[at:], decode)
        in_response = at >= len(token_ids(previous.request.body))
        if same or (same is None and in_response and _texts_agree(previous, current)):
            return _drift()
        return None

    def judge_rendered(self, was: Sequence[int], now: Sequence[int], decode: Decoder) -> Verdict | None:
        """The same of what follows the place where two rendered prompts part."""
        return _drift() if _same_text(was, now, decode) else None


def _drift() -> Verdict:
    message = "generated tokens differ from the tokens of the same text"
    return Verdict(RetokenisationDrift.code, message, cap=Severity.INFO, needs_loss=False)


def _same_text(was: Sequence[int], now: Sequence[int], decode: Decoder) -> bool | None:
    """Whether what ``was`` begins with is also what ``now`` spells; None where the vocabulary is not known.

    Texts that agree for ``_COMPARED`` tokens after their tokens part have been tokenised twice.
    """
    first = decode(list(was[:_COMPARED]))
    if first is None:
        return None
    is_cut = len(was) > _COMPARED
    first = first.rstrip("\ufffd") if is_cut else first  # half a character, where it was cut
    end = bisect.bisect_left(range(len(now)), len(first), key=lambda end: _length(list(now[:end]), decode))
    second = decode(list(now[:end]))
    if second is None:
        return None
    return second.startswith(first) if is_cut else second == first


def _length(ids: list[int], decode: Decoder) -> int:
    """Characters of some tokens; those of unknown ones never end."""
    text = decode(ids)
    return sys.maxsize if text is None else len(text)


def _texts_agree(previous: Prompt, current: Prompt) -> bool:
    was, now = (str(p.request.body.get("text") or "") for p in (previous, current))
    return bool(was) and now.startswith(was)
