"""Penalties, biases and masks against the formulas written plainly in float64, row by row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.server.engine.grammar_masks import StepMasks, apply_masks, apply_on_device
from sessile.server.engine.messages import SubmitTurn
from sessile.server.engine.sampler import SampleRow, sample
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.engine.sequence import Sequence

VOCAB = 61
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
PARAMS = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([1.0, 0.7, 1.3]),
        "presence_penalty": st.sampled_from([0.0, -1.5, 0.8]),
        "frequency_penalty": st.sampled_from([0.0, 2.0, -0.3]),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=4),
        "min_tokens": st.sampled_from([0, 9]),
    }
)
ROW = st.tuples(TOKENS.filter(bool), TOKENS, st.lists(st.integers(0, VOCAB - 1), max_size=4), PARAMS)


def sequence_of(prompt: list[int], answer: list[int], **params) -> Sequence:
    sampling = SamplingParams(**{"temperature": 0.0, "seed": 1, "stop_token_ids": (3, 5), **params})
    sequence = Sequence(SubmitTurn(turn_id="t", token_ids=prompt, sampling=sampling), 50, arrival=0.0, order=0)
    for token_id in answer:
        sequence.append(token_id, None)
    return sequence


def plainly(logits: np.ndarray, prompt: list[int], answer: list[int], params: SamplingParams) -> np.ndarray:
    """vLLM's definitions, [VOCAB] float64."""
    out = logits.astype(np.float64)
    for token_id in set(prompt) | set(answer):
        out[token_id] *= params.repetition_penalty if out[token_id] < 0 else 1 / params.repetition_penalty
    for token_id in set(answer):
        out[token_id] -= answer.count(token_id) * params.frequency_penalty + params.presence_penalty
    for token_id, bias in params.logit_bias.items():
        out[token_id] += bias
    if len(answer) < params.min_tokens:
        out[list(params.stop_token_ids)] = -np.inf
    return out


@settings(max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=5), st.integers(0, 1000))
def test_every_row_is_adjusted_by_its_own_history(rows: list[tuple], seed: int) -> None:
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    before = logits.numpy().copy()
    made = [
        (SampleRow(sequence_of(prompt, answer, **params), tuple(drafts)), prompt, answer + drafts)
        for prompt, answer, drafts, params in rows
    ]
    tokens = sample(logits, [row for row, _, _ in made])
    for index, (row, prompt, answer) in enumerate(made):
        expected = plainly(before[index], prompt, answer, row.params)
        np.testing.assert_allclose(logits[index].numpy(), expected, rtol=1e-5, atol=1e-4)
        assert expected[tokens[index].token_id] >= expected.max() - 1e-3


def test_a_row_is_adjusted_to_the_same_bits_alone_and_in_a_batch() -> None:
    rows = [
        SampleRow(sequence_of([1, 2, i], [4, 4, i], repetition_penalty=1.1 + i, presence_penalty=0.3)) for i in range(6)
    ]
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(2))
    together = logits.clone()
    sample(together, rows)
    for index, row in enumerate(rows):
        alone = logits[index : index + 1].clone()
        sample(alone, [row])
        assert torch.equal(alone[0], together[index])


def test_log_probabilities_are_the_models_own() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3))
    own = torch.log_softmax(logits[0], dim=-1)
    sequence = sequence_of([1], [], logit_bias={7: 100.0}, logprobs=2, min_tokens=5)
    (token,) = sample(logits.clone(), [SampleRow(sequence)])
    assert token.token_id == 7 and token.logprobs is not None
    assert token.logprobs.logprob == pytest.approx(float(own[7]))
    assert token.logprobs.top_token_ids == tuple(own.topk(2).indices.tolist())


def test_rows_that_ask_for_nothing_are_not_touched() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(4))
    plain, biased = sequence_of([1], []), sequence_of([1], [], logit_bias={2: 5.0})
    changed = logits.clone()
    sample(changed, [SampleRow(plain), SampleRow(biased)])
    assert torch.equal(changed[0], logits[0]) and not torch.equal(changed[1], logits[1])
    assert not plain.adjusts_logits and plain.counts is None


@pytest.mark.parametrize("width", [32, 61, 64, 97])
def test_masks_bar_what_their_bits_say_on_host_and_device(width: int) -> None:
    generator = np.random.default_rng(width)
    bits = generator.integers(0, 2, (3, -(-width // 32) * 32), dtype=np.uint8)
    step = StepMasks(np.array([0, 2, 3]), np.packbits(bits, axis=1, bitorder="little").view(np.int32), forced={})
    logits = torch.from_numpy(generator.normal(size=(5, width)).astype(np.float32))
    expected = logits.clone()
    for row, allowed in zip((0, 2, 3), bits, strict=True):
        expected[row, torch.from_numpy(allowed[:width]) == 0] = -torch.inf
    for apply in (apply_masks, apply_on_device):
        out = logits.clone()
        apply(out, step)
        assert torch.equal(out, expected)


def test_forced_tokens_are_not_drawn() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 9] = 5.0
    rows = [SampleRow(sequence_of([1], [], logprobs=0)), SampleRow(sequence_of([1], []))]
    step = StepMasks(np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int32), forced={0: 33})
    first, second = sample(logits, rows, step)
    assert (first.token_id, second.token_id) == (33, 9)
    assert first.logprobs is not None and first.logprobs.logprob < -5


def test_a_mask_has_its_way_where_stop_tokens_are_all_that_is_left() -> None:
    from sessile.server.engine.grammar_masks import compute_masks

    class Matcher:
        forced, ended, error = None, False, ""

        def __init__(self, allowed: tuple[int, ...]) -> None:
            self.allowed = allowed

        def fill(self, mask: np.ndarray) -> None:
            mask[:] = 0
            for token_id in self.allowed:
                mask.view(np.uint32)[token_id >> 5] |= np.uint32(1 << (token_id & 31))

    for allowed, expected in (((3, 31, 40), {31, 40}), ((3, 5), {3, 5}), ((), set(range(64)) - {3, 5})):
        sequence = sequence_of([1], [], min_tokens=4)
        sequence.grammar = Matcher(allowed)  # type: ignore[assignment]
        masks = compute_masks([SampleRow(sequence), SampleRow(SimpleNamespace(grammar=None))], words=2)  # type: ignore[arg-type]
        bits = np.unpackbits(masks.masks.view(np.uint8), axis=1, bitorder="little")
        assert set(np.flatnonzero(bits[0]).tolist()) == expected
