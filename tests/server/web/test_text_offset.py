"""Where a completion's tokens begin in its text does not depend on how many of them come at once."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from byte_text import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from sessile.server.engine.messages import FinishReason, TokenLogprobs, TokensBySource, TurnUsage
from sessile.server.web.answers import TextCompletion
from sessile.server.web.writers import CompletionWriter, TurnHead
from sessile.sessions.manager.turn_events import StopCause, TextDelta, TurnFinished

TOKENIZER = byte_tokenizer()
LOGPROBS = TokenLogprobs(-1.0, (), ())
USAGE = TurnUsage(prompt_tokens=1, completion_tokens=1, tokens_by_source=TokensBySource(computed=1))
FINISHED = TurnFinished(finish_reason=FinishReason.STOP, stop_cause=StopCause.END_OF_TURN, usage=USAGE)
HEAD = TurnHead.new("cmpl", "m", "f", include_usage=False, want_logprobs=True)


@given(text=st.text(max_size=20), cuts=st.lists(st.integers(0, 80), max_size=6))
@pytest.mark.parametrize("special", [(), (256,)])
def test_offsets_are_those_of_the_characters(special: tuple[int, ...], text: str, cuts: list[int]) -> None:
    token_ids = [*special, *TOKENIZER.encode(text, allow_special=False)]
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    deltas = [
        TextDelta(
            text="", token_ids=tuple(token_ids[start:stop]), logprobs=(TokenLogprobs(-1.0, (), ()),) * (stop - start)
        )
        for start, stop in itertools.pairwise(bounds)
    ]
    answer = CompletionWriter(HEAD, TOKENIZER.token_bytes).answer(deltas, FINISHED)
    (choice,) = msgspec.json.decode(answer, type=TextCompletion).choices
    assert choice.logprobs is not None
    whole = [len(character.encode()) for character in text]
    starts = [index for index, size in enumerate(whole) for _ in range(size)]
    assert choice.logprobs.text_offset == [0] * len(special) + starts
