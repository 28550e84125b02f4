"""The traces that lie beside the repository, where they do."""

from __future__ import annotations

import pytest
from recordings import recordings

from sessile.bench_agent.traces.formats import read_workload
from sessile.bench_agent.traces.source import BadLines
from sessile.bench_agent.workload.plan import BlocksPrompt, TextPrompt, Workload


def trace(name: str) -> Workload:
    return read_workload(recordings("traces", name), BadLines())


@pytest.mark.parametrize(("name", "sessions"), [("miniswe", 11), ("magagent", 10)])
def test_text_traces(name: str, sessions: int) -> None:
    workload = trace(name)
    assert workload.format == "text"
    assert len(workload.sessions) == sessions
    prompts = [turn.prompt for session in workload.sessions for turn in session.turns]
    assert all(isinstance(prompt, TextPrompt) and prompt.text for prompt in prompts)


@pytest.mark.parametrize(
    ("name", "requests", "reused"),
    [("mooncake_conversation.jsonl", 12_031, 0.374), ("mooncake_synthetic.jsonl", 3_993, 0.651)],
)
def test_hash_traces_reuse_what_is_published(name: str, requests: int, reused: float) -> None:
    workload = trace(name)
    assert len(workload.sessions) == requests
    seen: set[int] = set()
    tokens = hits = 0
    for session in workload.sessions:
        prompt = session.turns[0].prompt
        assert isinstance(prompt, BlocksPrompt)
        tokens += prompt.num_tokens
        known = sum(one in seen for one in prompt.hash_ids)
        hits += min(known * prompt.block_tokens, prompt.num_tokens)
        seen.update(prompt.hash_ids)
    assert hits / tokens == pytest.approx(reused, abs=0.002)
