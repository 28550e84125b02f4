"""The index against a plain search of the whole text."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.engine.speculation.suffix_index import BORDER, NOWHERE, WALK, Place, SuffixIndex

PIECES = st.lists(st.lists(st.integers(0, 3), max_size=70), min_size=1, max_size=6)


def places(text: list[int], context: list[int], longest: int) -> list[Place]:
    """All places, latest first, that agree with at least two tokens of the end of ``context``."""
    found = []
    for at in range(len(text) - 1, 1, -1):
        length = 0
        while length < min(at, len(context), longest) and text[at - 1 - length] == context[-1 - length]:
            length += 1
        if length >= 2:
            found.append(Place(length, at))
    return found


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def upto_the_longest(found: list[Place], longest: int) -> list[Place]:
    for index, place in enumerate(found):
        if place.length == longest:
            return found[: index + 1]
    return found


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES, context=st.lists(st.integers(0, 3), min_size=2, max_size=20), longest=st.integers(2, 9))
def test_the_latest_places_are_found(pieces: list[list[int]], context: list[int], longest: int) -> None:
    index, text = SuffixIndex(), list[int]()
    for piece in pieces:
        index.extend(array(piece))
        text += piece
        assert index.token_ids.tolist() == text
    expected = upto_the_longest(places(text, context, longest), longest)
    found = index.find(array(context).data, len(context), longest)
    assert found == expected[: len(found)]
    assert len(found) >= min(len(expected), 1), "other pairs with the same hash may take places of the walk, not all"


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES, keep=st.floats(0, 1), more=st.lists(st.integers(0, 3), max_size=60))
def test_a_text_that_is_cut_is_like_one_that_never_went_on(
    pieces: list[list[int]], keep: float, more: list[int]
) -> None:
    text = [token for piece in pieces for token in piece]
    kept = int(keep * len(text))
    cut, fresh = SuffixIndex(), SuffixIndex()
    for piece in pieces:
        cut.extend(array(piece))
    cut.cut(kept)
    fresh.extend(array(text[:kept]))
    for index in (cut, fresh):
        index.extend(array(more))
    whole = text[:kept] + more
    assert cut.token_ids.tolist() == whole
    for context in ([0, 1], [1, 1, 2], [3, 0, 0]):
        assert cut.find(array(context).data, len(context)) == fresh.find(array(context).data, len(context))
    for token in range(4):
        at = cut.find_one(token)
        assert at == NOWHERE or whole[at - 1] == token


def test_texts_do_not_run_into_each_other() -> None:
    index = SuffixIndex()
    index.extend(array([1, 2, 3, 4, BORDER, 5, 6]))
    assert index.find(array([9, 2, 3]).data, 3) == [Place(2, 3)]
    assert index.following(3, 10) == [4], "not the text behind the border"
    assert index.find(array([4, BORDER]).data, 2) == [Place(2, 5)]
    assert index.following(5, 10) == [5, 6]


def test_the_walk_is_short() -> None:
    index = SuffixIndex()
    index.extend(array([1, 2] * 5000))
    assert len(index.find(array([1, 2]).data, 2)) == WALK


def test_a_token_takes_at_most_16_bytes() -> None:
    rng = np.random.default_rng(0)
    for size in (500, 5_000, 50_000):
        index = SuffixIndex()
        for start in range(0, size, 37):
            index.extend(rng.integers(0, 50_000, min(37, size - start), dtype=np.int32))
        assert index.num_bytes <= 16 * index.num_tokens
