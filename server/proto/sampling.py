"""Sampling parameters, between their wire form and values."""

from __future__ import annotations

from typing import Any

import msgspec

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar, GrammarKind
from ..engine.sampling_params import SamplingParams
from . import session_pb2 as pb

_FIELDS = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "min_tokens", "logprobs"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def read_sampling(message: pb.SamplingParams) -> SamplingParams:
    """Raises RequestError naming the first field that is out of range."""
    present = {field.name for field, _ in message.ListFields()}
    given: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS if name in present}
    sampling = SamplingParams(
        **given,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logit_bias=dict(message.logit_bias),
        grammar=_read_grammar(message.grammar) if message.HasField("grammar") else None,
    )
    try:
        sampling.validate()
    except RequestError as error:
        error.field = f"sampling.{error.field}"
        raise
    return sampling


def write_sampling(sampling: SamplingParams) -> pb.SamplingParams:
    given: dict[str, Any] = {name: getattr(sampling, name) for name in _FIELDS}
    return pb.SamplingParams(
        **given,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logit_bias=sampling.logit_bias,
        grammar=None if sampling.grammar is None else _write_grammar(sampling.grammar),
    )


def _read_grammar(message: pb.Grammar) -> Grammar:
    form = message.WhichOneof("form")
    if form is None:
        raise RequestError("the grammar is empty", field="sampling.grammar", remedy="send a schema, a regex, …")
    kind = GrammarKind(form)
    match kind:
        case GrammarKind.JSON_OBJECT:
            if not message.json_object:
                raise RequestError(
                    "json_object is false", field="sampling.grammar.json_object", remedy="send true, or no grammar"
                )
            return Grammar(kind)
        case GrammarKind.CHOICE:
            return Grammar(kind, msgspec.json.encode(list(message.choice.texts)).decode())
        case _:
            return Grammar(kind, getattr(message, form))


def _write_grammar(grammar: Grammar) -> pb.Grammar:
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return pb.Grammar(json_object=True)
        case GrammarKind.CHOICE:
            return pb.Grammar(choice=pb.Choice(texts=msgspec.json.decode(grammar.text, type=list[str])))
        case GrammarKind.JSON_SCHEMA:
            return pb.Grammar(json_schema=grammar.text)
        case GrammarKind.REGEX:
            return pb.Grammar(regex=grammar.text)
        case GrammarKind.LARK:
            return pb.Grammar(lark=grammar.text)
        case GrammarKind.GBNF:
            return pb.Grammar(gbnf=grammar.text)
