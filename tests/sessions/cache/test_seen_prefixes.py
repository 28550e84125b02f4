"""The index of what was ever computed, against a plain list of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.sessions.cache.seen_prefixes import Seen, SeenPrefixes

BLOCK = 4
TOKENS = st.lists(st.integers(0, 2), max_size=24)
SALTS = st.sampled_from(["", "other"])


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def common(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.booleans(), SALTS, TOKENS), max_size=20))
def test_finds_the_longest_beginning_to_the_token(steps: list[tuple[bool, str, list[int]]]) -> None:
    index = SeenPrefixes(BLOCK, max_blocks=10_000, seed=b"fixed")
    noted: list[tuple[str, list[int]]] = []
    for is_note, salt, tokens in steps:
        if is_note:
            index.note(salt, array(tokens))
            noted.append((salt, tokens))
        own = max((common(other, tokens) for of, other in noted if of == salt), default=0)
        anyone = max((common(other, tokens) // BLOCK * BLOCK for _, other in noted), default=0)
        assert index.longest(salt, array(tokens)) == Seen(own, anyone)
    assert index.num_forgotten == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), TOKENS), max_size=60))
def test_a_full_index_forgets_and_says_so_but_never_invents(steps: list[tuple[bool, list[int]]]) -> None:
    index = SeenPrefixes(BLOCK, max_blocks=8, seed=b"fixed")
    noted: list[list[int]] = []
    for is_note, tokens in steps:
        if is_note:
            index.note("", array(tokens))
            noted.append(tokens)
        exact = max((common(other, tokens) for other in noted), default=0)
        found = index.longest("", array(tokens)).own_salt
        assert found <= exact
        assert found == exact or index.num_forgotten > 0
        assert index.num_blocks <= 8 + 2 * 6  # a sequence more than the bound, in each generation


def test_what_is_used_outlives_what_is_not() -> None:
    index = SeenPrefixes(BLOCK, max_blocks=40, seed=b"fixed")
    system = list(range(100, 120))
    index.note("", array(system))
    for session in range(200):
        index.note("", array([*system, session, *range(8)]))
        assert index.longest("", array(system)).own_salt == 20
    assert index.num_forgotten > 0


def test_sessions_that_part_at_one_border_are_found_by_bisection() -> None:
    index = SeenPrefixes(BLOCK, max_blocks=100_000)
    for session in range(3000):
        index.note("", array([1, 2, 3, 4, session, session + 1]))
    assert index.longest("", array([1, 2, 3, 4, 777, 778, 9])).own_salt == 6
    assert index.longest("", array([1, 2, 3, 4, 777, 9])).own_salt == 5
