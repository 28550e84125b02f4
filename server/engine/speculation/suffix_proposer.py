"""Guesses from texts: what followed, earlier, on the longest run of tokens that the turn ends with now.

The idea of suffix decoding (Oliaro et al., 2024): agents repeat themselves, in tool calls, file contents and plans.
Matches of any length are taken, the longer first, and of several continuations the most frequent.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..sequence import Sequence
from .past_outputs import PastOutputs
from .proposal import Agreement, Ask, Proposal, Source
from .session_texts import SessionTexts
from .suffix_index import BORDER, LONGEST, NOWHERE, Place, SuffixIndex

_LEAD_TOKENS = 4  # of the prompt, kept before what a turn said: how it began can be guessed then
_AFTER_ONE_TOKEN = 3  # tokens guessed from one that agrees


class _Found(NamedTuple):
    place: Place
    source: Source
    text: SuffixIndex

    @property
    def next_token(self) -> int:
        return self.text.token(self.place.at)


class NgramProposer:
    """The floor: what followed the last two to four tokens, where the conversation had them last (prompt lookup)."""

    def __init__(self, texts: SessionTexts, longest: int = 4) -> None:
        self._texts = texts
        self._longest = longest

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        """See ``Proposer``."""
        return [self._propose(ask) for ask in asks]

    def ended(self, sequence: Sequence) -> None:
        """See ``Proposer``."""
        self._texts.ended(sequence)

    def close(self) -> None:
        """See ``Proposer``."""

    def _propose(self, ask: Ask) -> list[Proposal]:
        text = self._texts.text_of(ask.sequence)
        places = text.find(text.view, text.num_tokens, self._longest)
        if not places:
            return []
        best = max(places, key=lambda place: place.length)  # of equal ones the first, which is the latest
        return [Proposal(text.following(best.at, ask.most), Source.SESSION, best.length)]


class SuffixProposer:
    """Searches the conversation, what its tenant's turns said before, and the text that the turn is to repeat."""

    def __init__(self, texts: SessionTexts, outputs: PastOutputs) -> None:
        self._texts = texts
        self._outputs = outputs
        self._expected: dict[Sequence, SuffixIndex] = {}

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        """See ``Proposer``."""
        return [self._propose(ask) for ask in asks]

    def ended(self, sequence: Sequence) -> None:
        """See ``Proposer``."""
        self._texts.ended(sequence)
        self._expected.pop(sequence, None)
        if sequence.num_output_tokens > 1:
            said = sequence.token_ids[max(0, sequence.num_prompt_tokens - _LEAD_TOKENS) :]
            self._outputs.add(sequence.turn.cache_salt, sequence.turn.tool_schema, said)

    def close(self) -> None:
        """See ``Proposer``."""
        self._outputs.close()

    def _propose(self, ask: Ask) -> list[Proposal]:
        text = self._texts.text_of(ask.sequence)
        others = self._others(ask.sequence)
        found: list[_Found] = []
        for source, searched in ((Source.SESSION, text), *others):
            found += [_Found(place, source, searched) for place in searched.find(text.view, text.num_tokens)]
            if found and found[-1].place.length == LONGEST:
                break
        if found:
            return _chosen(found, ask.most)
        last = text.token(text.num_tokens - 1)
        after_one = [_after_one_token(source, searched, last, ask.most) for source, searched in others]
        return next((proposals for proposals in reversed(after_one) if proposals), [])

    def _others(self, sequence: Sequence) -> list[tuple[Source, SuffixIndex]]:
        """The texts beside the conversation, the one that is believed most last."""
        others = []
        outputs = self._outputs.of(sequence.turn.cache_salt, sequence.turn.tool_schema)
        if outputs is not None:
            others.append((Source.OUTPUTS, outputs))
        if sequence.turn.expected_token_ids:
            expected = self._expected.get(sequence)
            if expected is None:
                expected = self._expected[sequence] = SuffixIndex(len(sequence.turn.expected_token_ids))
                expected.extend(np.array(sequence.turn.expected_token_ids, dtype=np.int32))
            others.append((Source.EXPECTED, expected))
        return others


def _chosen(found: list[_Found], most: int) -> list[Proposal]:
    """The most frequent continuation of the longest match, and the best one that begins otherwise."""
    longest = max([f.place.length for f in found])
    best = [f for f in found if f.place.length == longest]
    counts = Counter([f.next_token for f in best])
    token, votes = counts.most_common(1)[0]
    first = max([f for f in best if f.next_token == token], key=lambda f: f.source)
    agreement = Agreement.UNANIMOUS if votes == len(best) else Agreement.SPLIT
    chosen = [_proposal(first, most, agreement if len(best) > 1 else Agreement.SINGLE)]
    if len(found) > 1:
        others = [f for f in found if f.next_token not in (token, BORDER)]
        if others:
            chosen.append(_proposal(max(others, key=lambda f: f.place.length), most, Agreement.SECOND))
    return chosen


def _proposal(found: _Found, most: int, agreement: Agreement) -> Proposal:
    return Proposal(found.text.following(found.place.at, most), found.source, found.place.length, agreement)


def _after_one_token(source: Source, text: SuffixIndex, token_id: int, most: int) -> list[Proposal]:
    at = text.find_one(token_id)
    if at == NOWHERE:
        return []
    tokens = text.following(at, min(most, _AFTER_ONE_TOKEN))
    return [Proposal(tokens, source, 1)] if tokens else []
