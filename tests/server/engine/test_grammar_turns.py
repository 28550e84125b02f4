"""Turns with grammars, in the engine: what they say, and that nothing else changes it."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import jsonschema
import pytest
from grammar_bench import GrammarBench, RandomDrafter
from small_tokenizer import small_tokenizer

from sessile.server.engine.grammar import Grammar, GrammarKind
from sessile.server.engine.messages import FinishReason

POINT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 31},
        "items": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}},
    },
    "required": ["name", "unit", "days"],
    "additionalProperties": False,
}


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def compact(value: dict[str, Any]) -> Grammar:
    """Without whitespace: much of the text is forced."""
    return schema({**value, "x-guidance": {"whitespace_flexible": False}})


def test_an_answer_is_what_the_schema_says_and_ends_with_it() -> None:
    bench = GrammarBench()
    for seed in range(20):
        bench.submit(f"t{seed}", schema(POINT), seed=seed)
    bench.run()
    answers = {bench.text(f"t{seed}") for seed in range(20)}
    for text in answers:
        jsonschema.validate(json.loads(text), POINT)
    assert len(answers) == 20, "they are drawn"
    assert {last.finish_reason for last in bench.last.values()} == {FinishReason.STOP}


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar(GrammarKind.REGEX, r"[a-c]{3}-\d{2,4}"), r"[a-c]{3}-\d{2,4}"),
        (Grammar(GrammarKind.CHOICE, '["yes", "no", "not \\"really\\""]'), r'yes|no|not "really"'),
        (Grammar(GrammarKind.CHOICE, json.dumps([f"choice {number}" for number in range(3000)])), r"choice \d{1,4}"),
        (Grammar(GrammarKind.CHOICE, '["yes"]'), "yes"),
        (Grammar(GrammarKind.LARK, 'start: "<" word ">"\nword: /[a-z]{2,5}/'), r"<[a-z]{2,5}>"),
        (Grammar(GrammarKind.GBNF, 'root ::= "x" ("1" | "22")'), r"x(1|22)"),
    ],
    ids=lambda value: str(value.kind) if isinstance(value, Grammar) else "",
)
def test_other_grammars(grammar: Grammar, pattern: str) -> None:
    bench = GrammarBench()
    for seed in range(10):
        bench.submit(f"t{seed}", grammar, seed=seed)
    bench.run()
    for turn_id in bench.tokens:
        assert re.fullmatch(pattern, bench.text(turn_id)), bench.text(turn_id)


def test_any_json_object() -> None:
    bench = GrammarBench()
    for seed in range(8):
        bench.submit(f"t{seed}", Grammar(GrammarKind.JSON_OBJECT), seed=seed, max_tokens=900)
    bench.run()
    ended = [turn_id for turn_id, last in bench.last.items() if last.finish_reason is FinishReason.STOP]
    assert ended
    assert all(isinstance(json.loads(bench.text(turn_id)), dict) for turn_id in ended)


def test_special_tokens_of_a_grammar_and_the_end_of_turn() -> None:
    bench = GrammarBench()
    bench.submit("a", Grammar(GrammarKind.LARK, 'start: <|im_start|> "call"'))
    bench.submit("b", Grammar(GrammarKind.REGEX, "a*"), max_tokens=200)
    bench.run()
    start, end = (bench.tokenizer.token_id(text) for text in ("<|im_start|>", "<|im_end|>"))
    assert bench.tokens["a"][0] == start
    assert bench.text("a") == "call"
    assert set(bench.text("b")) <= {"a"}
    assert end in bench.tokens["b"] or bench.last["b"].finish_reason is FinishReason.LENGTH


def test_a_grammar_that_allows_everything_changes_nothing() -> None:
    free, bound = GrammarBench(), GrammarBench()
    everything = Grammar(GrammarKind.REGEX, r"(?s:[\x00-\x7F]*)")
    ascii_only = {
        token_id: -100.0
        for token_id in range(free.vocab_size)
        if any(byte > 0x7F for byte in free.tokenizer.token_bytes[token_id]) or not free.tokenizer.token_bytes[token_id]
    }
    start = free.tokenizer.token_id("<|im_start|>")
    assert start is not None
    for bench, grammar in ((free, None), (bound, everything)):
        for temperature in (0.0, 1.0):
            bench.submit(f"t{temperature}", grammar, temperature=temperature, logit_bias={**ascii_only, start: -100.0})
        bench.run()
    assert free.tokens == bound.tokens


@pytest.mark.parametrize("grammar", [schema(POINT), compact(POINT)], ids=["whitespace", "compact"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_vllm_9423_11484_speculation_keeps_grammars(grammar: Grammar, temperature: float) -> None:
    """The same tokens with drafts or without, alone and in a batch, right drafts or wrong ones."""
    plain = GrammarBench()
    for number in range(5):
        plain.submit(f"t{number}", grammar, seed=number, temperature=temperature)
        plain.run()
    for seed in range(4):
        drafter = RandomDrafter(seed, longest=7, vocab_size=plain.vocab_size)
        drafter.answers = [*plain.tokens.values()] if seed % 2 else []
        fast = GrammarBench(drafter=drafter)
        for number in range(5):
            fast.submit(f"t{number}", grammar, seed=number, temperature=temperature)
        fast.run()
        assert fast.tokens == plain.tokens
        assert fast.core.stats().drafted_tokens > 0
        assert not seed % 2 or fast.core.stats().accepted_tokens > 20


def test_forced_tokens_take_no_steps_and_are_the_same_with_log_probabilities() -> None:
    fast, slow = GrammarBench(), GrammarBench()
    for bench, logprobs in ((fast, None), (slow, 0)):
        for seed in range(3):
            bench.submit(f"t{seed}", compact(POINT), seed=seed, logprobs=logprobs)
            bench.run()
    assert fast.tokens == slow.tokens
    steps = [len(bench.core._runner._model.computed) for bench in (fast, slow)]
    assert steps[0] < steps[1] * 0.9
    assert fast.core.stats().forced_tokens > 0 == slow.core.stats().forced_tokens
    assert fast.core.stats().generated_tokens == sum(map(len, fast.tokens.values()))
    assert [len(found) for found in slow.logprobs.values()] == [len(tokens) for tokens in slow.tokens.values()]
    for turn_id, last in fast.last.items():
        assert last.usage is not None
        assert last.usage.completion_tokens == len(fast.tokens[turn_id])


def test_long_forced_texts_keep_to_the_budget_of_a_step() -> None:
    text = "the quick brown fox jumps over the lazy dog " * 8
    bench = GrammarBench(max_batch_tokens=8, max_sequences=4, max_prefill_tokens_while_decoding=4)
    for number in range(4):
        bench.submit(f"t{number}", Grammar(GrammarKind.CHOICE, json.dumps([f"{number}{text}", f"{number}."])))
    bench.run()
    assert max(bench.core._runner._model.computed) <= 8
    for number in range(4):
        assert bench.text(f"t{number}") in (f"{number}{text}", f"{number}.")


@pytest.mark.parametrize("longest", [0, 5])
def test_preemption_in_the_middle_of_a_grammar(longest: int) -> None:
    roomy = GrammarBench()
    drafter = RandomDrafter(1, longest, roomy.vocab_size)
    tight = GrammarBench(num_blocks=14, drafter=drafter, max_sequences=4)
    points = compact({"type": "array", "items": POINT, "minItems": 4, "maxItems": 6})
    for bench in (roomy, tight):
        for number in range(4):
            prompt = [number, *range(20)]
            bench.submit(f"t{number}", points, prompt, seed=number, max_tokens=180)
        bench.run()
    assert tight.core.stats().preemptions > 0
    assert tight.tokens == roomy.tokens


def test_length_stops_inside_forced_text_and_stop_tokens_count() -> None:
    bench = GrammarBench()
    bench.submit("a", Grammar(GrammarKind.CHOICE, '["the quick brown fox jumps over the lazy dog"]'), max_tokens=3)
    space = small_tokenizer().encode_inside("the quick brown")[1]
    bench.submit("b", Grammar(GrammarKind.CHOICE, '["the quick brown fox"]'), stop_token_ids=(space,))
    bench.run()
    assert (bench.last["a"].finish_reason, len(bench.tokens["a"])) == (FinishReason.LENGTH, 3)
    assert (bench.last["b"].finish_reason, bench.tokens["b"][-1]) == (FinishReason.STOP, space)


def test_min_tokens_and_ignore_eos_do_not_break_the_grammar() -> None:
    bench = GrammarBench()
    bench.submit("a", Grammar(GrammarKind.REGEX, "[a-z]*"), min_tokens=60, max_tokens=80)
    bench.submit("b", Grammar(GrammarKind.REGEX, "[a-z]{3}"), min_tokens=60, max_tokens=80)
    bench.submit("c", Grammar(GrammarKind.REGEX, "[a-z]{1,4}"), ignore_eos=True)
    bench.run()
    assert len(bench.tokens["a"]) >= 60 and re.fullmatch("[a-z]*", bench.text("a"))
    assert re.fullmatch("[a-z]{3}", bench.text("b")), "what the grammar ends is ended"
    assert re.fullmatch("[a-z]{1,4}", bench.text("c"))
    assert bench.last["c"].finish_reason is FinishReason.STOP


def test_a_grammar_that_fails_on_its_way_ends_its_turn_alone() -> None:
    bench = GrammarBench()
    bench.submit("bad", Grammar(GrammarKind.REGEX, r"(.*a.{30}b.*c.{30}d)+"), max_tokens=200)
    bench.submit("worse", Grammar(GrammarKind.REGEX, "("))
    bench.submit("good", schema(POINT))
    bench.run()
    assert bench.last["worse"].finish_reason is FinishReason.FAILED
    assert "grammar" in bench.last["worse"].error
    assert "verbose" not in bench.last["worse"].error, "the compiler's own marks"
    jsonschema.validate(json.loads(bench.text("good")), POINT)


def test_a_turn_that_is_aborted_while_its_grammar_is_compiled() -> None:
    bench = GrammarBench()
    bench.submit("a", schema(POINT))
    bench.core.abort("a")
    bench.submit("b", schema(POINT))
    bench.run()
    assert bench.last["a"].finish_reason is FinishReason.ABORTED
    assert bench.last["b"].finish_reason is FinishReason.STOP


def test_the_same_seed_says_the_same_in_any_company() -> None:
    alone = GrammarBench()
    alone.submit("t", schema(POINT), seed=3)
    alone.run()
    for others in itertools.product([None, compact(POINT)], [0.0, 1.0]):
        bench = GrammarBench()
        for number in range(4):
            bench.submit(f"o{number}", others[0], seed=number, temperature=others[1], max_tokens=40)
        bench.submit("t", schema(POINT), seed=3)
        bench.run()
        assert bench.tokens["t"] == alone.tokens["t"]
