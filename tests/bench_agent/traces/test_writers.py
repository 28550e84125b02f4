"""What is written is read again; what a form can hold is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_files import through

from sessile.bench_agent.traces.formats import FORMATS, read_workload
from sessile.bench_agent.traces.source import BadLines
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload

SAMPLES = Path(__file__).parent / "samples"
WRITTEN = [known.name for known in FORMATS if known.write is not None]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_every_sample_can_be_written_in_every_form(name: str, sample: str, tmp_path: Path) -> None:
    workload = read_workload(SAMPLES / sample, BadLines())
    suffix = "json" if name == "otel" else "jsonl"
    again = through(workload, name, tmp_path / f"w.{suffix}")
    assert again.num_turns >= len(workload.sessions)


def test_native_is_exact(tmp_path: Path) -> None:
    for sample in SAMPLES.iterdir():
        workload = read_workload(sample, BadLines())
        again = through(workload, "native", tmp_path / "w.jsonl")
        assert again.sessions == workload.sessions
        assert again.sha256() == workload.sha256()


@pytest.mark.parametrize("name", ["weka", "otel"])
def test_sub_agents_stay_beside_each_other(name: str, tmp_path: Path) -> None:
    shape = preset("agent-forks")
    workload = synthetic_workload("w", shape, sessions=6, seed=3)
    again = through(workload, name, tmp_path / ("w.json" if name == "otel" else "w.jsonl"))
    assert again.num_turns == workload.num_turns
    agents = {turn.agent for session in again.sessions for turn in session.turns}
    assert any(agent.startswith("sub-") for agent in agents)


def test_shared_prefixes_become_shared_hash_ids(tmp_path: Path) -> None:
    workload = synthetic_workload("w", preset("agent-load"), sessions=2, seed=0)
    rows = through(workload, "hash", tmp_path / "w.jsonl").sessions
    first, other = rows[0].turns[0].prompt, rows[-1].turns[0].prompt
    assert first.hash_ids[0] == other.hash_ids[0]
    assert len(first.hash_ids) > 1
