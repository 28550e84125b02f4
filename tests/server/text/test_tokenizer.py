"""Encoding: special tokens only where they are allowed, and back to the same text."""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.server.text.prompt_text import Origin, PromptText, TextPart
from sessile.server.text.tokenizer import Tokenizer
from sessile.sessions.errors import RequestError

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


@RELAXED
@given(text=TEXTS)
def test_text_survives_byte_level(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text, allow_special=False), skip_special=False) == text


@RELAXED
@given(text=TEXTS)
def test_text_survives_sentencepiece(sentencepiece: Tokenizer, text: str) -> None:
    tokens = sentencepiece.encode(text, allow_special=False)
    # U+2581 is how SentencePiece writes a space: it cannot come back as itself.
    assert sentencepiece.decode(tokens, skip_special=False) == text.replace("▁", " ")


def test_special_tokens_only_where_allowed(byte_level: Tokenizer) -> None:
    end = byte_level.token_id("<|im_end|>")
    assert byte_level.encode("<|im_end|>", allow_special=True) == [end]
    literal = byte_level.encode("<|im_end|>", allow_special=False)
    assert end not in literal
    assert byte_level.decode(literal, skip_special=True) == "<|im_end|>"


def test_added_tokens_that_are_not_special_are_vocabulary(byte_level: Tokenizer) -> None:
    think = byte_level.token_id("<think>")
    assert byte_level.encode("<think>", allow_special=False) == [think]
    assert byte_level.decode([think], skip_special=True) == "<think>"


def test_nothing_is_put_around_a_text(sentencepiece: Tokenizer) -> None:
    assert 1 not in sentencepiece.encode("the fox", allow_special=True)
    assert sentencepiece.encode_completion("the fox")[0] == 1


def test_a_prompt_keeps_template_and_literal_text_apart(byte_level: Tokenizer) -> None:
    prompt = PromptText(
        (
            TextPart("<|im_start|>user\n", Origin.TEMPLATE),
            TextPart("<|im_end|>", Origin.LITERAL),
            TextPart("<|im_end|>\n", Origin.TEMPLATE),
        )
    )
    tokens = byte_level.encode_prompt(prompt)
    assert tokens.count(byte_level.token_id("<|im_end|>")) == 1
    assert byte_level.decode(tokens, skip_special=False) == prompt.text


def test_a_literal_inside_sentencepiece_text_adds_no_spaces(sentencepiece: Tokenizer) -> None:
    parts = (
        TextPart("the ", Origin.TEMPLATE),
        TextPart("</s>", Origin.LITERAL),
        TextPart(" fox</s>", Origin.TEMPLATE),
    )
    tokens = sentencepiece.encode_prompt(PromptText(parts))
    assert tokens.count(2) == 1
    assert sentencepiece.decode(tokens, skip_special=False) == "the </s> fox</s>"


@pytest.mark.parametrize("origin", list(Origin))
def test_what_is_already_logged_is_not_encoded_again(byte_level: Tokenizer, origin: Origin) -> None:
    rest = PromptText((TextPart("\nuser", origin),), already_logged="<|im_end|>")
    assert byte_level.decode(byte_level.encode_prompt(rest), skip_special=False) == "\nuser"


def test_sentencepiece_sees_what_precedes_a_continuation(sentencepiece: Tokenizer) -> None:
    whole = sentencepiece.encode("the fox</s>[INST] the fox", allow_special=True)
    first = sentencepiece.encode("the fox", allow_special=True)
    rest = PromptText((TextPart("[INST] the fox", Origin.TEMPLATE),), already_logged="</s>")
    assert [*first, 2, *sentencepiece.encode_prompt(rest)] == whole


def test_lone_surrogates_are_refused(byte_level: Tokenizer) -> None:
    for encode in (byte_level.encode_completion, lambda text: byte_level.encode(text, allow_special=False)):
        with pytest.raises(RequestError, match="cannot be encoded"):
            encode("half \ud83d character")


def test_ids_beyond_the_vocabulary_decode_to_nothing(byte_level: Tokenizer) -> None:
    assert byte_level.decode([10**6, 2**40], skip_special=False) == ""


def test_the_fingerprint_follows_vocabulary_and_roles(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.fingerprint != sentencepiece.fingerprint
    assert len(byte_level.fingerprint) == 64


def test_threads_do_not_mix_up_their_special_tokens(byte_level: Tokenizer) -> None:
    end = byte_level.token_id("<|im_end|>")

    def encode(index: int) -> bool:
        allowed = index % 2 == 0
        return (end in byte_level.encode("a<|im_end|>", allow_special=allowed)) is allowed

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(encode, range(400)))


async def test_other_threads_go_on_while_a_long_text_is_encoded(byte_level: Tokenizer) -> None:
    """The loop serves everybody's streams; the thread that tokenises must not hold the interpreter's lock."""
    encode = partial(byte_level.encode, "🐘" * 100_000, allow_special=False)
    encoding = asyncio.get_running_loop().run_in_executor(None, encode)
    ticks = [time.perf_counter()]
    while not encoding.done():
        await asyncio.sleep(0)
        ticks.append(time.perf_counter())
    assert len(await encoding) >= 100_000
    stood_still = max(later - earlier for earlier, later in itertools.pairwise(ticks))
    assert stood_still < (ticks[-1] - ticks[0]) / 2
