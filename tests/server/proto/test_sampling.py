"""Sampling parameters over the wire and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.proto import session_pb2 as pb
from sessile.server.proto.sampling import read_sampling, write_sampling
from sessile.sessions.errors import RequestError
from sessile.sessions.manager.answers import digest_of
from sessile.sessions.manager.requests import GenerateRequest

TEXTS = st.text(max_size=20)
GRAMMARS = st.one_of(
    st.just(Grammar(GrammarKind.JSON_OBJECT)),
    st.builds(lambda texts: Grammar(GrammarKind.CHOICE, json.dumps(texts)), st.lists(TEXTS, min_size=1)),
    st.builds(
        Grammar,
        st.sampled_from([GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.LARK, GrammarKind.GBNF]),
        TEXTS,
    ),
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 1000),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    max_tokens=st.none() | st.integers(50, 1000),
    min_tokens=st.integers(0, 50),
    stop_token_ids=st.lists(st.integers(0, 1000), max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    repetition_penalty=st.floats(0, 100, exclude_min=True),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 2**31), st.floats(-100, 100), max_size=4),
    grammar=st.none() | GRAMMARS,
)


@given(PARAMS)
def test_what_is_written_is_read(params: SamplingParams) -> None:
    back = read_sampling(pb.SamplingParams.FromString(write_sampling(params).SerializeToString()))
    if params.grammar is not None and params.grammar.kind is GrammarKind.CHOICE:
        assert back.grammar is not None
        assert json.loads(back.grammar.text) == json.loads(params.grammar.text)
        return
    assert back == params


def test_nothing_is_the_defaults() -> None:
    assert read_sampling(pb.SamplingParams()) == SamplingParams()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.SamplingParams(grammar=pb.Grammar()), "sampling.grammar"),
        (pb.SamplingParams(grammar=pb.Grammar(json_object=False)), "sampling.grammar.json_object"),
        (pb.SamplingParams(presence_penalty=3), "sampling.presence_penalty"),
        (pb.SamplingParams(repetition_penalty=0), "sampling.repetition_penalty"),
        (pb.SamplingParams(logit_bias={1: 1000.0}), "sampling.logit_bias"),
    ],
)
def test_what_cannot_be_is_named(message: pb.SamplingParams, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_sampling(message)
    assert caught.value.field == field


def test_a_request_with_biases_has_a_digest_that_does_not_depend_on_their_order() -> None:
    def request(biases: dict[int, float]) -> GenerateRequest:
        return GenerateRequest(session_id="s", request_id="r", sampling=SamplingParams(logit_bias=biases))

    assert digest_of(request({1: 2.0, 3: 4.0})) == digest_of(request({3: 4.0, 1: 2.0}))
    assert digest_of(request({1: 2.0})) != digest_of(request({1: 2.5}))
