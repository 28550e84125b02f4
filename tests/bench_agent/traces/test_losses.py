"""What a form keeps survives it; what it loses is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trace_files import through, workload, written

from sessile.bench_agent.cli import main
from sessile.bench_agent.traces.formats import FORMATS, TraceFormat
from sessile.bench_agent.traces.losses import Trait, has, losses
from sessile.bench_agent.workload.plan import (
    BlocksPrompt,
    Message,
    MessagesPrompt,
    SessionPlan,
    ToolCall,
    Turn,
    Workload,
)
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload

SAMPLES = Path(__file__).parent / "samples"
WRITTEN = [known for known in FORMATS if known.write is not None]


def _rich() -> Workload:
    """A session with all that a conversation can have: calls, tools, a fork, two sub-agents at a time, gaps."""

    def turn(text: str, **more: Any) -> Turn:
        return Turn(
            prompt=MessagesPrompt((Message("user", text),)), recorded=Message("assistant", f"re {text}"), **more
        )

    called = Message("assistant", "look", (ToolCall("k1", "a", '{"x": 1}'), ToolCall("k2", "b")))
    results = (Message("tool", "one", (), "k1"), Message("tool", "two", (), "k2", "b"), Message("user", "and?"))
    first = Turn(prompt=MessagesPrompt((Message("system", "Rules."), Message("user", "Go."))), recorded=called)
    turns = (
        first,
        Turn(prompt=MessagesPrompt(results), continues=0, after=(0,), gap_s=0.5, recorded=Message("assistant", "hm")),
        turn("part a", after=(1,), gap_s=0.1, agent="sub-a", output_tokens=7),
        turn("part b", after=(1,), gap_s=0.1, agent="sub-b", output_tokens=8),
        turn("more a", continues=2, after=(2,), gap_s=0.2, agent="sub-a", output_tokens=9),
        turn("second try", continues=0, after=(3, 4), gap_s=1.5, output_tokens=11),
    )
    tools = ({"type": "function", "function": {"name": "a"}},)
    plans = (
        SessionPlan(session_id="s", turns=turns, tools=tools, unrecorded_tokens=99),
        SessionPlan(session_id="t", turns=(turn("Hi"), turn("More", continues=0, after=(0,))), arrival_s=2.5),
    )
    return Workload(name="rich", format="native", sessions=plans)


def _workloads() -> dict[str, Callable[[], Workload]]:
    found: dict[str, Callable[[], Workload]] = {"rich": _rich}
    for path in sorted(SAMPLES.iterdir()):
        found[path.name] = partial(workload, path)
    for name in ("agent-load", "agent-forks"):
        found[name] = partial(synthetic_workload, "w", preset(name), sessions=3, seed=2)
    return found


WORKLOADS = _workloads()


def _overlaps(found: Workload) -> int:
    return has(found, Trait.OVERLAPS) + has(found, Trait.SUB_OVERLAPS)


def details(found: Workload, trait: Trait) -> object:
    """What of a trait has to be the same afterwards."""
    turns = [turn for session in found.sessions for turn in session.turns]
    match trait:
        case Trait.GAPS:
            return sorted(turn.gap_s for turn in turns if turn.gap_s)
        case Trait.AGENTS:
            return sorted(turn.agent for turn in turns)
        case Trait.ARRIVALS:
            first = min(session.arrival_s for session in found.sessions)
            return sorted(session.arrival_s - first for session in found.sessions)
        case Trait.LENGTHS:
            return sorted(turn.output_tokens or 0 for turn in turns)
        case Trait.BLOCKS:
            return sorted(turn.prompt.num_tokens for turn in turns if isinstance(turn.prompt, BlocksPrompt))
        case Trait.TOOLS:
            return [session.tools for session in found.sessions if session.tools]
        case _:
            return has(found, trait)


@pytest.mark.parametrize("known", WRITTEN, ids=lambda known: known.name)
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_kept_is_the_same_and_what_is_lost_is_told(known: TraceFormat, name: str, tmp_path: Path) -> None:
    before = WORKLOADS[name]()
    after = workload(written(before, known.name, tmp_path / "w.jsonl"))
    assert after.format == known.name  # recognised as what it was written as
    told = losses(before, known.keeps)
    for trait in set(Trait) - known.keeps - {Trait.FORKS}:
        assert bool(has(before, trait)) == any(trait.value in line for line in told)
    rewritten = [trait for trait in (Trait.FORKS, Trait.PLAIN, Trait.BLOCKS) if trait not in known.keeps]
    if any(has(before, trait) for trait in rewritten):
        return  # other turns, or other messages, than before: told
    assert [len(session.turns) for session in after.sessions] == [len(session.turns) for session in before.sessions]
    content = {Trait.PLAIN, Trait.BLOCKS, Trait.UNANSWERED, Trait.UNDER_64, Trait.UNDER_512}
    for trait in known.keeps - content:
        if trait in (Trait.LENGTHS, Trait.ANSWERS) and has(before, trait) < before.num_turns:
            continue  # where a form has to say one it says an estimate, or an empty one
        if trait is Trait.GAPS and _overlaps(before) and Trait.OVERLAPS not in known.keeps:
            continue  # one after the other, they wait for each other
        assert details(after, trait) == details(before, trait), trait


@pytest.mark.parametrize("known", WRITTEN, ids=lambda known: known.name)
@pytest.mark.parametrize("name", ["text.jsonl", "hash.jsonl", "weka.json"])
def test_whole_prompts_are_kept_where_they_are_said_to_be(known: TraceFormat, name: str, tmp_path: Path) -> None:
    before = WORKLOADS[name]()
    after = workload(written(before, known.name, tmp_path / "w.jsonl"))
    for trait in known.keeps & {Trait.PLAIN, Trait.BLOCKS, Trait.GAPS}:
        if has(before, trait) and not (trait is Trait.GAPS and _overlaps(before)):
            assert details(after, trait) == details(before, trait)


@pytest.mark.parametrize("name", ["text", "hash", "weka", "otel", "aiperf"])
def test_these_keep_every_turn_of_every_session(name: str, tmp_path: Path) -> None:
    for make in WORKLOADS.values():
        before = make()
        after = through(before, name, tmp_path / "w.json")
        assert sorted(len(s.turns) for s in after.sessions) == sorted(len(s.turns) for s in before.sessions)


def test_otel_keeps_the_conversation_itself(tmp_path: Path) -> None:
    before = _rich().sessions
    after = workload(written(_rich(), "otel", tmp_path / "w.json")).sessions
    for old, new in zip(before, after, strict=True):
        assert [turn.prompt for turn in new.turns] == [turn.prompt for turn in old.turns]
        assert [turn.recorded for turn in new.turns] == [turn.recorded for turn in old.turns]
        assert [turn.continues for turn in new.turns] == [turn.continues for turn in old.turns]
        assert [turn.agent for turn in new.turns] == [turn.agent for turn in old.turns]


def test_convert_says_aloud_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = SAMPLES / "claude.jsonl"
    assert main(["convert", str(sample), str(tmp_path / "out.jsonl"), "--to", "aiperf"]) == 0
    said = capsys.readouterr().out
    assert "claude-code to aiperf: 1 sessions, 5 turns" in said
    for lost in ("5 recorded answers", "turns of sub-agents", "tool calls and results", "unrecorded system prompts"):
        assert f"note: lost: {lost}" in said or lost in said
    assert main(["convert", str(sample), str(tmp_path / "out.jsonl"), "--to", "native"]) == 0
    assert "lost" not in capsys.readouterr().out


def test_agents_that_wait_for_each_other_do_so_in_wekas_form_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no place for one that waits for another but among the main agent's calls: told."""
    asked = MessagesPrompt((Message("user", "x"),))
    turns = tuple(
        Turn(prompt=asked, after=after, agent=agent)
        for agent, after in (
            ("main", ()),
            ("sub-coder", (0,)),
            ("sub-reviewer", (1,)),
            ("sub-writer", (2,)),
            ("sub-idler", (2,)),
            ("main", (3,)),  # nobody waits for the idler
        )
    )
    plan = Workload(name="w", format="native", sessions=(SessionPlan(session_id="s", turns=turns),))
    source = written(plan, "native", tmp_path / "in.jsonl")
    assert main(["convert", str(source), str(tmp_path / "out.jsonl"), "--to", "weka"]) == 0
    (session,) = workload(tmp_path / "out.jsonl").sessions
    assert [turn.agent for turn in session.turns] == ["main", "sub-coder", "main", "sub-writer", "sub-idler", "main"]
    assert [turn.after for turn in session.turns] == [(), (0,), (0, 1), (2,), (2,), (2, 3)]
    assert "lost: 1 turns of sub-agents, by name" in capsys.readouterr().out


def test_aiperf_has_the_system_prompt_of_one_turn_and_of_whole_prompts(tmp_path: Path) -> None:
    asked = MessagesPrompt((Message("system", "Rules."), Message("user", "Go.")))
    one = SessionPlan(session_id="one", turns=(Turn(prompt=asked),))
    two = SessionPlan(session_id="two", turns=(Turn(prompt=asked), Turn(prompt=asked, after=(0,))))
    plan = Workload(name="w", format="native", sessions=(one, two))
    first, second = workload(written(plan, "aiperf", tmp_path / "w.jsonl")).sessions
    assert first.turns == one.turns
    assert [turn.prompt for turn in second.turns] == [MessagesPrompt((Message("user", "Rules.\nGo."),))] * 2
