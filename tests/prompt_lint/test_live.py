"""What a server remembers of requests, and what it tells of tokens."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.prompt_lint.live import LiveDiagnosis, PromptReading
from sessile.prompt_lint.prompt import Prompt
from sessile.prompt_lint.request import ApiShape, Request
from sessile.prompt_lint.rules.tokens import RetokenisationDrift

LETTERS = "abcdefghij"


def spelled(ids: list[int]) -> str:
    """Token 10·a + b is two letters, token a is one."""
    return "".join("".join(LETTERS[int(digit)] for digit in str(token)) for token in ids)


def chat(*texts: str) -> Request:
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
    return Request({"model": "m", "messages": talk}, ApiShape.OPENAI_CHAT, session="s")


def test_the_same_text_in_other_tokens_is_pl704() -> None:
    diagnosis = LiveDiagnosis(kept_chars=10_000, kept_requests=16, reading=PromptReading(decode=spelled))
    asked = chat("say it")
    asked.rendered_token_ids = array("i", [1, 2, 3, 4])
    assert diagnosis.feed(asked) is None
    asked.response_token_ids = array("i", [56, 7, 8])
    more = chat("say it", spelled([5, 6, 7, 8]), "go on")
    more.rendered_token_ids = array("i", [1, 2, 3, 4, 5, 67, 8, 9, 9])
    found = diagnosis.feed(more)
    assert found is not None
    assert (found.rule, found.location.path) == ("PL704", "rendered_token_ids[4]")


def test_another_text_in_other_tokens_is_not() -> None:
    diagnosis = LiveDiagnosis(kept_chars=10_000, kept_requests=16, reading=PromptReading(decode=spelled))
    asked = chat("say it")
    asked.rendered_token_ids = array("i", [1, 2, 3, 4])
    diagnosis.feed(asked)
    asked.response_token_ids = array("i", [56, 7, 8])
    more = chat("say it", "something else", "go on")
    more.rendered_token_ids = array("i", [1, 2, 3, 4, 5, 68, 8, 9, 9])
    assert diagnosis.feed(more) is None


def says_the_same(was: list[int], now: list[int]) -> bool:
    """The definition: the shortest beginning that is long enough spells it."""
    texts = (spelled(now[:end]) for end in range(len(now) + 1))
    return next((text for text in texts if len(text) >= len(spelled(was))), spelled(now)) == spelled(was)


IDS = st.lists(st.integers(0, 99), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(IDS, IDS, st.booleans())
def test_same_texts_are_found_as_the_definition_says(was: list[int], other: list[int], again: bool) -> None:
    now = [*map(int, "".join(map(str, was))), *other] if again else other
    found = RetokenisationDrift().judge_rendered(was, now, spelled)
    assert (found is not None) == says_the_same(was, now)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=900), st.lists(st.integers(0, 5000), max_size=300))
def test_units_of_tokens_say_all_tokens_and_are_few(head: list[int], tail: list[int]) -> None:
    first, second = (Prompt(Request({"prompt_token_ids": ids}, ApiShape.TOKENS)) for ids in ([*head], [*head, *tail]))
    for prompt, ids in ((first, head), (second, [*head, *tail])):
        assert " ".join(unit.plain if isinstance(unit.value, str) else str(unit.value) for unit in prompt.units) == (
            " ".join(map(str, ids))
        )
        assert len(prompt.units) <= 64 + len(ids)
    shared = [a.digest == b.digest for a, b in zip(first.units, second.units, strict=False)]
    assert all(shared[:-1]), "only the last run of the shorter prompt may be cut otherwise"


def test_a_long_prompt_of_tokens_is_a_few_hundred_units() -> None:
    ids = [(i * 7919) % 49_152 for i in range(100_000)]
    assert len(Prompt(Request({"prompt_token_ids": ids}, ApiShape.TOKENS)).units) < 3_000
