"""The tokens of a turn, counted as they come, against counting them anew."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessile.server.engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 30) | st.integers(0, 100_000), max_size=200)


@given(TOKENS, TOKENS, st.lists(st.integers(0, 40), max_size=6))
def test_counts_are_those_of_the_whole_text(prompt: list[int], answer: list[int], drafts: list[int]) -> None:
    counts = TokenCounts(np.array(prompt, dtype=np.int32))
    for token_id in answer:
        counts.add(token_id)
    for behind in ([], drafts, []):  # drafts leave nothing behind
        ids, numbers = counts.behind(behind)
        assert len(set(ids.tolist())) == len(ids)
        expected = Counter(answer + behind)
        assert dict(zip(ids.tolist(), numbers.tolist(), strict=True)) == {
            token_id: expected[token_id] for token_id in {*prompt, *answer, *behind}
        }
