from __future__ import annotations

import random
import statistics

import pytest

from sessile.bench_agent.errors import BenchError
from sessile.bench_agent.workload.adjust import Adjustments, adjust, estimated_prompt_tokens
from sessile.bench_agent.workload.distributions import Distribution, Shape, fixed, parse_distribution
from sessile.bench_agent.workload.plan import BlocksPrompt, MessagesPrompt, SessionPlan, Turn, Workload, check_session
from sessile.bench_agent.workload.presets import PRESETS, preset
from sessile.bench_agent.workload.synthetic import synthetic_workload
from sessile.bench_agent.workload.text import WORDS, BlockTexts, made_up_text


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_same_seed_is_the_same_load(name: str) -> None:
    shape = preset(name).scaled(0.05)
    one = synthetic_workload(name, shape, sessions=3, seed=7)
    assert one.sha256() == synthetic_workload(name, shape, sessions=3, seed=7).sha256()
    assert one.sha256() != synthetic_workload(name, shape, sessions=3, seed=8).sha256()
    for session in one.sessions:
        check_session(session)


@pytest.mark.parametrize(
    ("name", "turns", "prompt", "output", "reusable"),
    [("agentx", 43, 142_000, 444, 0.96), ("codex-swebench-pro", 33, 45_850, 350, 0.942)],
)
def test_presets_follow_the_public_figures(name: str, turns: int, prompt: int, output: int, reusable: float) -> None:
    """At a hundredth of the lengths, which the figures do not depend on."""
    sessions = synthetic_workload(name, preset(name).scaled(0.01), sessions=60, seed=1).sessions
    own = [[turn for turn in session.turns if turn.agent == "main"] for session in sessions]
    assert statistics.median(len(some) for some in own) == pytest.approx(turns, rel=0.1)
    prompts = [length for some in own for length in _lengths(some)]
    assert statistics.mean(prompts) == pytest.approx(prompt / 100, rel=0.15)
    assert statistics.mean(turn.output_tokens or 0 for some in own for turn in some) == pytest.approx(
        output / 100, rel=0.15
    )
    reused = [_lengths(some)[place] for some in own for place in range(len(some) - 1)]
    assert sum(reused) / sum(prompts) == pytest.approx(reusable, abs=0.02)


def _lengths(turns: list[Turn]) -> list[int]:
    """Prompt tokens by words, without the room for role marks."""
    found: list[int] = []
    length = 0
    for turn in turns:
        assert isinstance(turn.prompt, MessagesPrompt)
        length += sum(len(message.content.split()) for message in turn.prompt.messages)
        found.append(length)
        length += turn.output_tokens or 0
    return found


def test_agentx_sends_sub_agents_in_44_percent_of_the_sessions() -> None:
    sessions = synthetic_workload("agentx", preset("agentx").scaled(0.001), sessions=400, seed=2).sessions
    share = sum(any(turn.agent != "main" for turn in session.turns) for session in sessions) / len(sessions)
    assert share == pytest.approx(0.44, abs=0.07)


def test_small_presets_fit_a_small_context() -> None:
    for name in ("agentx-8k", "codex-8k", "agent-load", "agent-forks"):
        for session in synthetic_workload(name, preset(name), sessions=30, seed=0).sessions:
            assert max(estimated_prompt_tokens(session.turns)) < 11_500  # by characters, which overestimates words


def test_an_unknown_preset() -> None:
    with pytest.raises(BenchError, match="agentx"):
        preset("nobody")


@pytest.mark.parametrize(
    ("text", "mean"),
    [("48", 48), ("uniform:0,0.4", 0.2), ("exp:0.2", 0.2), ("normal:100,5", 100), ("lognormal:40,0.1", 40.2)],
)
def test_distributions(text: str, mean: float) -> None:
    found = parse_distribution(text)
    assert str(parse_distribution(str(found))) == str(found)
    rng = random.Random(0)
    assert statistics.mean(found.sample(rng) for _ in range(4000)) == pytest.approx(mean, rel=0.06)
    assert found.scaled(2).sample(random.Random(1)) == pytest.approx(2 * found.sample(random.Random(1)))


@pytest.mark.parametrize("text", ["", "many", "uniform:1", "exp:-1", "zipf:1,2", "normal:a,b"])
def test_what_is_no_distribution(text: str) -> None:
    with pytest.raises(BenchError, match="not a distribution"):
        parse_distribution(text)


def test_block_texts_are_shared_where_ids_are() -> None:
    texts = BlockTexts()
    one = texts.text(BlocksPrompt((1, 2, 3), 16, 40))
    other = BlockTexts().text(BlocksPrompt((1, 2, 9), 16, 48))
    assert len(one.split()) == 40
    assert one.split()[:32] == other.split()[:32]
    assert one.split()[32:] != other.split()[32:40]
    assert texts.text(BlocksPrompt((1,), 16, 16, "elsewhere")) != " ".join(one.split()[:16])
    assert len(texts.text(BlocksPrompt((), 16, 5)).split()) == 5


def test_block_texts_forget_the_oldest() -> None:
    texts = BlockTexts(capacity=2)
    first = texts.text(BlocksPrompt((1,), 8, 8))
    texts.text(BlocksPrompt((2, 3), 8, 16))
    assert texts.text(BlocksPrompt((1,), 8, 8)) == first


def test_words_are_single_words() -> None:
    assert len(set(WORDS)) == len(WORDS) > 190
    assert made_up_text(random.Random(0), 3).startswith(" ")


def plan(*turns: Turn) -> Workload:
    return Workload(
        name="w", format="native", sessions=(SessionPlan(session_id="s", turns=turns, unrecorded_tokens=50),)
    )


def blocks(tokens: int, **more: object) -> Turn:
    return Turn(prompt=BlocksPrompt(tuple(range(tokens // 512 + 1)), 512, tokens), output_tokens=100, **more)


def test_scaling_keeps_what_is_shared() -> None:
    scaled = adjust(plan(blocks(1024)), Adjustments(scale=1 / 32)).sessions[0].turns[0]
    assert isinstance(scaled.prompt, BlocksPrompt)
    assert (scaled.prompt.block_tokens, scaled.prompt.num_tokens, scaled.output_tokens) == (16, 32, 3)


def test_turns_over_the_context_are_left_out_and_others_closed_up() -> None:
    workload = plan(blocks(512), blocks(5000, after=(0,)), blocks(600, after=(1,)))
    found = adjust(workload, Adjustments(max_context=1000))
    assert [turn.after for turn in found.sessions[0].turns] == [(), (0,)]
    assert "1 turns left out" in found.notes[0]
    assert adjust(workload, Adjustments(max_context=10)).sessions == ()


def test_gaps_and_lengths_can_be_replaced() -> None:
    workload = synthetic_workload("w", preset("agent-load"), sessions=2, seed=0)
    changed = adjust(workload, Adjustments(gap=fixed(3), gap_cap_s=2.0, output_tokens=9, max_sessions=1, max_turns=3))
    (session,) = changed.sessions
    assert [turn.gap_s for turn in session.turns] == [0.0, 2.0, 2.0]
    assert {turn.output_tokens for turn in session.turns} == {9}
    assert changed.sha256() != workload.sha256()


def test_an_unrecorded_system_prompt_can_be_made_up() -> None:
    workload = synthetic_workload("w", preset("agent-load"), sessions=1, seed=0)
    session = workload.sessions[0]
    lacking = Workload(
        name="w", format="native", sessions=(SessionPlan(session_id="s", turns=session.turns, unrecorded_tokens=40),)
    )
    filled = adjust(lacking, Adjustments(fill_unrecorded=True)).sessions[0]
    assert isinstance(filled.turns[0].prompt, MessagesPrompt)
    first = filled.turns[0].prompt.messages[0]
    assert first.role == "system" and len(first.content.split()) == 44
    assert Distribution(Shape.FIXED, 1.0) == fixed(1)
