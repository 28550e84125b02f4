"""The pieces that the detokeniser emits make up the whole text, and none is half a character."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.server.text.detokenizer import IncrementalDetokenizer
from sessile.server.text.tokenizer import Tokenizer

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

CHUNKS = st.lists(st.lists(st.integers(0, 430), max_size=5), max_size=12)


@pytest.mark.parametrize("skip_special", [True, False])
@RELAXED
@given(chunks=CHUNKS)
def test_pieces_make_up_the_byte_level_text(byte_level: Tokenizer, chunks: list[list[int]], skip_special: bool) -> None:
    check(byte_level, chunks, skip_special)


@pytest.mark.parametrize("skip_special", [True, False])
@RELAXED
@given(chunks=CHUNKS)
def test_pieces_make_up_the_sentencepiece_text(
    sentencepiece: Tokenizer, chunks: list[list[int]], skip_special: bool
) -> None:
    check(sentencepiece, chunks, skip_special)


def check(tokenizer: Tokenizer, chunks: list[list[int]], skip_special: bool) -> None:
    shown = () if skip_special else tokenizer.special_texts
    detokenizer = IncrementalDetokenizer(tokenizer, shown_special=shown)
    pieces = [detokenizer.push(chunk) for chunk in chunks] + [detokenizer.flush()]
    whole = [token_id for chunk in chunks for token_id in chunk]
    assert "".join(pieces) == tokenizer.decode(whole, skip_special=skip_special)


@RELAXED
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_a_token_at_a_time_never_shows_half_a_character(byte_level: Tokenizer, text: str) -> None:
    detokenizer = IncrementalDetokenizer(byte_level)
    pieces = [detokenizer.push([token_id]) for token_id in byte_level.encode(text, allow_special=False)]
    assert "".join(pieces) == text
    assert all(piece in text for piece in pieces)
    assert detokenizer.flush() == ""


@RELAXED
@given(token_ids=st.lists(st.integers(0, 400), max_size=30))
def test_decoding_equals_the_library(byte_level: Tokenizer, token_ids: list[int]) -> None:
    library = byte_level._backend.decode(token_ids, skip_special_tokens=True)
    assert byte_level.decode(token_ids, skip_special=True) == library


def test_an_unfinished_character_is_flushed_as_a_replacement(byte_level: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(byte_level)
    tokens = byte_level.encode("\U0001f9a6", allow_special=False)
    assert len(tokens) > 1
    assert detokenizer.push(tokens[:-1]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_only_the_first_space_of_sentencepiece_text_is_dropped(sentencepiece: Tokenizer) -> None:
    tokens = sentencepiece.encode("the fox", allow_special=False)
    detokenizer = IncrementalDetokenizer(sentencepiece)
    assert [detokenizer.push([token_id]) for token_id in tokens] == ["the", " fox"]
