"""The simulator replays traces through the real scheduler: small ones here, thousands of turns by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recordings import recordings

from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.messages import FinishReason, Priority
from sessile.server.engine.simulator.__main__ import main
from sessile.server.engine.simulator.engine import SimulatedEngine
from sessile.server.engine.simulator.report import World, simulate
from sessile.server.engine.simulator.step_cost import GPU
from sessile.server.engine.simulator.workload import Mix, arrivals, read_trace

CONFIG = EngineConfig(block_size=64, max_batch_tokens=2048, max_sequences=32, max_stall_ms=100)


def small_trace(path: Path, count: int = 40) -> Path:
    """Conversations of several turns: each repeats the hash ids of the one before."""
    lines = []
    for index in range(count):
        session, turn = index % 8, index // 8
        hash_ids = [0, *(1 + 100 * session + i for i in range(turn + 1))]
        lines.append(
            {
                "timestamp": 150 * index,
                "input_length": 512 * len(hash_ids) - 100,
                "output_length": 5 + index % 7,
                "hash_ids": hash_ids,
            }
        )
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_equal_hash_ids_are_equal_tokens(tmp_path: Path) -> None:
    turns = list(arrivals(read_trace(small_trace(tmp_path / "t.jsonl")), 2.0, Mix(), 1 << 20))
    first, later = turns[0].turn, turns[8].turn
    assert later.token_ids[: len(first.token_ids)] == first.token_ids
    assert turns[1].turn.token_ids[:512] == first.token_ids[:512]
    assert turns[1].turn.token_ids[512] != first.token_ids[512]
    assert turns[8].time == pytest.approx(0.6), "twice as fast as recorded"


def test_all_turns_end_and_prefixes_are_found(tmp_path: Path) -> None:
    turns = list(arrivals(read_trace(small_trace(tmp_path / "t.jsonl")), 1.0, Mix(), 1 << 20))
    engine = SimulatedEngine(CONFIG, GPU, num_blocks=4096)
    for arrival in turns:
        engine.run_until(arrival.time)
        engine.submit(arrival.turn)
    engine.run()
    engine.check_integrity()
    assert all(record.reason is FinishReason.LENGTH for record in engine.records.values())
    assert all(record.num_cached >= 512 * 2 - 163 for name, record in engine.records.items() if int(name) >= 8)
    assert {record.turn.priority for record in engine.records.values()} == set(Priority)


def test_the_command_prints_a_line_for_each_class_and_draws(tmp_path: Path, capsys) -> None:
    trace = small_trace(tmp_path / "t.jsonl", 24)
    picture = tmp_path / "pictures" / "latency.png"
    assert main([str(trace), "--load", "1", "4", "--cost", "gpu", "--plot", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 3 + 1 and "interactive" in lines[1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([str(trace), "--load", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["turns"] == 24


@pytest.mark.parametrize(
    ("text", "named"), [("{}", "line 1"), ('{"timestamp": 0}', "line 1"), ("no json", "t.jsonl"), (None, "t.jsonl")]
)
def test_a_bad_trace_is_named(tmp_path: Path, capsys, text: str | None, named: str) -> None:
    path = tmp_path / "t.jsonl"
    if text is not None:
        path.write_text(text)
    assert main([str(path)]) == 2
    assert named in capsys.readouterr().err


def test_bounds_hold_on_a_recorded_trace() -> None:
    """Some hundred turns at overload: streams do not stall, interactive turns go first."""
    trace = recordings("traces", "mooncake_conversation.jsonl")
    world = World(CONFIG, GPU, num_blocks=1 << 13)
    report = simulate(world, arrivals(read_trace(trace, 120), 0.6, Mix(), 1 << 18), 0.6)
    assert report.turns == 120
    assert report.longest_stall_ms <= 105
    assert report.stalled_share < 0.01
    assert report.spread_of_bound <= 1
    by_class = {each.priority: each for each in report.classes}
    assert by_class["interactive"].first_token_p50_s < by_class["batch"].first_token_p50_s
