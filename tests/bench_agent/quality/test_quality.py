from __future__ import annotations

import math

import pytest
from scripted_openai import Script, ScriptedServer

from sessile.bench_agent.driver.ask import Ask
from sessile.bench_agent.driver.dialects import dialect_named
from sessile.bench_agent.driver.observation import Observation, TokenLogprob
from sessile.bench_agent.driver.openai_http import OpenAiDriver
from sessile.bench_agent.quality.agreement import Answered, agreement, answer_again, converse
from sessile.bench_agent.quality.perplexity import _of, perplexity
from sessile.bench_agent.quality.validity import TOOLS, calls_in_text, fits_tool, json_object, judge_calls
from sessile.bench_agent.workload.adjust import Adjustments, adjust
from sessile.bench_agent.workload.plan import ToolCall
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload


def answered(tokens: list[tuple[str, float]]) -> Answered:
    seen = Observation(pieces=[token for token, _ in tokens], logprobs=[TokenLogprob(*one) for one in tokens])
    return Answered("here", Ask(index=0), seen)


def test_agreement_of_tokens_and_their_probabilities() -> None:
    ours = [answered([("a", -0.1), ("b", -0.2)]), answered([("a", -0.1), ("x", -0.5)])]
    theirs = [answered([("a", -0.1), ("b", -0.3)]), answered([("a", -0.4), ("y", -0.5)])]
    found = agreement(ours, theirs)
    assert (found.answers, found.identical, found.before_difference) == (2, 0.5, 0.75)
    assert found.unit == "tokens" and found.compared_logprobs == 3
    assert found.largest_logprob_difference == pytest.approx(0.3)
    assert found.mean_logprob_difference == pytest.approx(0.4 / 3)
    assert found.first_differences == ("here, after 1: ['x'] and ['y']",)


def test_agreement_of_text_where_there_are_no_tokens() -> None:
    ours = Answered("here", Ask(index=0), Observation(pieces=["abcd"]))
    theirs = Answered("here", Ask(index=0), Observation(pieces=["abXd"]))
    found = agreement([ours], [theirs])
    assert (found.unit, found.before_difference, found.mean_logprob_difference) == ("characters", 0.5, None)


async def test_the_reference_gets_the_targets_prompts() -> None:
    work = synthetic_workload("w", preset("agent-load"), sessions=2, seed=0)
    async with ScriptedServer(Script()) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("vllm"))
        first = await converse(work, driver.conversation, 4)

        def cold(name: str) -> object:
            return driver.cold_conversation(name)

        again = await answer_again(first, cold)  # type: ignore[arg-type]
        await driver.close()
    assert len(first) == len(again) == 12
    sent = [served.body["messages"] for served in server.served]
    assert sent[:12] == sent[12:]
    assert len({served.body["cache_salt"] for served in server.served[12:]}) == 12
    assert agreement(first, again).identical == 1.0


def test_tool_calls_are_judged_by_their_schema() -> None:
    good = ToolCall("1", "run", '{"command": "ls", "timeout_s": 2}')
    answers = [
        [good],
        [ToolCall("1", "run", '{"command": 3, "timeout_s": 2}')],
        [ToolCall("1", "nobody", "{}")],
        [ToolCall("1", "run", "ls")],
        [],
    ]
    found = judge_calls(answers, TOOLS)
    assert (found.called, found.json, found.fitting) == (0.8, 0.6, 0.2)
    assert not fits_tool("run", {"command": "ls"}, TOOLS)
    assert not fits_tool("run", {"command": "ls", "timeout_s": True}, TOOLS)
    assert not fits_tool("run", {"command": "ls", "timeout_s": 1, "more": 2}, TOOLS)


def test_calls_and_objects_in_text() -> None:
    text = 'Well. <tool_call>\n{"name": "run", "arguments": {"command": "ls", "timeout_s": 1}}\n</tool_call>'
    assert judge_calls([calls_in_text(text)], TOOLS).fitting == 1.0
    assert calls_in_text("none") == []
    assert json_object('```json\n{"a": 1}\n```') == {"a": 1}
    assert json_object("[1]") is None and json_object("{") is None


async def test_perplexity_step_by_step() -> None:
    """A server that always says ` word` with certainty: a text of such words has perplexity 1, by the text's tokens."""

    class Certain(OpenAiDriver):
        async def run(self, ask: Ask, headers: object, more: object, seen: Observation) -> None:
            seen.logprobs = [TokenLogprob(" word", 0.0, {" word": 0.0, " w": -3.0, "x": -5.0})]

    driver = Certain("http://127.0.0.1:9", model=None, dialect=dialect_named("openai"))
    found = await perplexity(driver, "word word word", 50)
    assert found is not None and (found.perplexity, found.tokens, found.found) == (1.0, 2, 1.0)
    missing = await perplexity(driver, "word else word", 50)
    assert missing is not None and missing.found == 0.5 and missing.perplexity > 5
    await driver.close()


async def test_no_probabilities_are_no_perplexity_and_tiny_ones_a_number() -> None:
    async with ScriptedServer(Script()) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("openai"))
        assert await perplexity(driver, "some text", 50) is None
        await driver.close()
    least = _of([-1e6], 1.0, "prompt")
    assert math.isfinite(least.perplexity) and least.perplexity > 1e300


async def test_a_busy_server_is_asked_again() -> None:
    async with ScriptedServer(Script(status=lambda number: 429 if number == 0 else 200)) as server:
        driver = OpenAiDriver(server.url, model=None, dialect=dialect_named("openai"))
        work = adjust(synthetic_workload("w", preset("agent-load"), sessions=1, seed=0), Adjustments(max_turns=2))
        answered = await converse(work, driver.conversation, 2)
        await driver.close()
    assert [one.seen.retries for one in answered] == [1, 0]
