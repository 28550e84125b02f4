"""Guesses from texts: what followed, earlier, on the longest run of tokens that the turn ends with now.

The idea of suffix decoding (Oliaro et al., 2024): agents repeat themselves, in tool calls, file contents and plans.
Matches of any length are taken, the longer first, and of several continuations the most frequent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..sequence import Sequence
from .past_outputs import PastOutputs
from .proposal import Agreement, Ask, Proposal, Source
from .session_texts import SessionTexts
from .suffix_index import BORDER, LONGEST, NOWHERE, SuffixIndex

_LEAD_TOKENS = 4  # of the prompt, kept before what a turn said: how it began can be guessed then
_AFTER_ONE_TOKEN = 3  # tokens guessed from one that agrees, or as a second guess
_MATCH_FOR_SECOND = 6  # behind longer ones a second guess is right too seldom


class _Found(NamedTuple):
    """A place that a continuation can be read at."""

    at: int
    source: Source
    text: SuffixIndex


class NgramProposer:
    """The floor: what followed the last two to four tokens, where the conversation had them last (prompt lookup)."""

    def __init__(self, texts: SessionTexts, longest: int = 4) -> None:
        self._texts = texts
        self._longest = longest

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        """See ``Proposer``."""
        self._texts.begin_step()
        return [self._propose(ask) for ask in asks]

    def ended(self, sequence: Sequence) -> None:
        """See ``Proposer``."""
        self._texts.ended(sequence)

    def close(self) -> None:
        """See ``Proposer``."""

    def _propose(self, ask: Ask) -> list[Proposal]:
        text = self._texts.text_of(ask.sequence)
        if text is None:
            return []
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
        self._texts.begin_step()
        return [self._propose(ask) for ask in asks]

    def ended(self, sequence: Sequence) -> None:
        """See ``Proposer``."""
        self._texts.ended(sequence)
        self._expected.pop(sequence, None)
        if sequence.num_output_tokens > 1:
            said = sequence.token_ids[max(0, sequence.num_prompt_tokens - _LEAD_TOKENS) :]
            remember = self._outputs.add if sequence.turn.persist else self._outputs.add_for_now
            remember(sequence.turn.cache_salt, sequence.turn.tool_schema, said)

    def close(self) -> None:
        """See ``Proposer``."""
        self._outputs.close()

    def _propose(self, ask: Ask) -> list[Proposal]:
        text = self._texts.text_of(ask.sequence)
        if text is None:
            return []
        others = self._others(ask.sequence)
        longest, best, rest = 0, list[_Found](), list[_Found]()
        for source, searched in ((Source.SESSION, text), *others):
            for length, at in searched.find(text.view, text.num_tokens):
                if length > longest:
                    longest, best, rest = length, [], best
                (best if length == longest else rest).append(_Found(at, source, searched))
            if longest == LONGEST:
                break
        if best:
            return _chosen(longest, best, rest, ask.most)
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


def _chosen(longest: int, best: list[_Found], rest: list[_Found], most: int) -> list[Proposal]:
    """The most frequent continuation of ``best``, the places with the longest match, of equal ones the latest; and
    where that is short, the best continuation that begins otherwise."""
    first, agreement = best[0], Agreement.SINGLE
    token = first.text.token(first.at)
    if len(best) > 1:
        tokens = [found.text.token(found.at) for found in best]
        agreement = Agreement.UNANIMOUS
        if tokens.count(token) != len(tokens):
            agreement = Agreement.SPLIT
            token = max(tokens, key=tokens.count)
        first = max((found for found, after in zip(best, tokens, strict=True) if after == token), key=_source)
    chosen = [Proposal(first.text.following(first.at, most), first.source, longest, agreement)]
    if longest <= _MATCH_FOR_SECOND:
        second = next((f for f in (*best, *rest) if f.text.token(f.at) not in (token, BORDER)), None)
        if second is not None:
            tokens = second.text.following(second.at, min(most, _AFTER_ONE_TOKEN))
            chosen.append(Proposal(tokens, second.source, longest, Agreement.SECOND))
    return chosen


def _source(found: _Found) -> Source:
    return found.source


def _after_one_token(source: Source, text: SuffixIndex, token_id: int, most: int) -> list[Proposal]:
    at = text.find_one(token_id)
    if at == NOWHERE:
        return []
    tokens = text.following(at, min(most, _AFTER_ONE_TOKEN))
    return [Proposal(tokens, source, 1)] if tokens else []
