"""The trace log, read by those that it is written for."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from sessile.bench_agent.traces.formats import read_workload
from sessile.bench_agent.traces.source import BadLines
from sessile.prompt_lint.engine import TraceLinter, TraceOptions
from sessile.prompt_lint.readers.detect import open_trace
from sessile.server.engine.messages import SubmitTurn, TokensBySource, TurnUsage
from sessile.server.engine.sampling_params import SamplingParams
from sessile.server.observe.trace_log import Blotter, TraceLog
from sessile.server.observe.turn_record import TurnRecord

RULES = "Keep to every rule of the handbook, whatever the traveller asks for. " * 60


def record(number: int, conversation: str = "s") -> TurnRecord:
    usage = TurnUsage(prompt_tokens=1000, completion_tokens=3, tokens_by_source=TokensBySource(device=10, computed=990))
    turn = SubmitTurn(turn_id=str(number), token_ids=[1, 2, 3], sampling=SamplingParams())
    return TurnRecord(
        turn=turn, conversation=conversation, started_at=1_000.0 + number, ttft_s=0.2, duration_s=0.9,
        outcome="stop", usage=usage, output_token_ids=(65, 66, 67),
    )  # fmt: skip


def body(clock: str, turns: int) -> dict[str, Any]:
    """A conversation whose system text begins with the time: the classic miss."""
    messages = [{"role": "system", "content": f"It is {clock}.\n{RULES}"}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question number {turn}, if you please"})
        if turn < turns - 1:
            messages.append({"role": "assistant", "content": "ABC"})
    return {"model": "m", "messages": messages}


def log_to(folder: Path, **changes: Any) -> TraceLog:
    settings = {"content": "on", "file_bytes": 1 << 20, "files": 3, "model": "m"} | changes
    return TraceLog(folder, detokenise=lambda ids: "".join(map(chr, ids)), **settings)


def write_conversation(folder: Path, content: str) -> None:
    log = log_to(folder, content=content)
    for number in range(3):
        asked = body(f"10:{15 + number}:02", number + 1)
        log.write(record(number), lambda asked=asked: asked)
    log.close()
    assert (log.num_written, log.num_dropped, log.failure) == (3, 0, "")


def fix_key(folder: Path) -> None:
    """The same hashes each time: of random keys a few in a thousand give two short words one hash."""
    (folder / "hash.key").write_bytes(bytes(range(32)))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("turns-*.jsonl"))


@pytest.mark.parametrize("content", ["on", "hashed"])
def test_prompt_lint_finds_the_break_in_it(tmp_path: Path, content: str) -> None:
    fix_key(tmp_path)
    write_conversation(tmp_path, content)
    (file,) = files(tmp_path)
    with file.open("rb") as stream:
        findings = TraceLinter(TraceOptions()).feed_all(open_trace(str(file), stream).requests)
    assert [(finding.location.line, finding.location.path) for finding in findings] == [
        (2, "messages[0].content"),
        (3, "messages[0].content"),
    ]
    assert content == "hashed" or findings[0].rule == "PL101"


@pytest.mark.parametrize("content", ["on", "hashed"])
def test_bench_agent_replays_it(tmp_path: Path, content: str) -> None:
    fix_key(tmp_path)
    write_conversation(tmp_path, content)
    workload = read_workload(tmp_path, BadLines())
    (session,) = workload.sessions
    assert len(session.turns) == 3
    assert session.session_id == "s"


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    write_conversation(tmp_path, "hashed")
    for path in (*files(tmp_path), tmp_path / "hash.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_hashed_content_says_nothing_and_keeps_what_was_equal(tmp_path: Path) -> None:
    write_conversation(tmp_path, "hashed")
    text = files(tmp_path)[0].read_text()
    for word in ("handbook", "traveller", "Question", "ABC"):
        assert word not in text
    first, second = (json.loads(line)["request"]["messages"][0]["content"] for line in text.splitlines()[:2])
    assert first != second
    assert first.split("\n")[1] == second.split("\n")[1]
    again = Blotter((tmp_path / "hash.key").read_bytes())
    assert again.text(RULES) == first.split("\n", 1)[1]


def test_without_content_there_are_counts_alone(tmp_path: Path) -> None:
    write_conversation(tmp_path, "off")
    line = json.loads(files(tmp_path)[0].read_text().splitlines()[0])
    assert line["usage"]["prompt_tokens"] == 1000
    assert "request" not in line
    with files(tmp_path)[0].open("rb") as stream:
        assert len(list(open_trace("off", stream).requests)) == 3


def test_files_are_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    log = log_to(tmp_path, file_bytes=5000, files=2)
    for number in range(10):
        log.write(record(number), lambda: body("now", 1))
    log.close()
    kept = files(tmp_path)
    assert len(kept) == 2
    assert all(file.stat().st_size <= 6000 for file in kept)
    assert json.loads(kept[-1].read_text().splitlines()[-1])["timestamp"] == 1009.0
    later = log_to(tmp_path)
    later.close()
    assert files(tmp_path)[-1].name > kept[-1].name


def test_a_full_disk_turns_it_off(tmp_path: Path) -> None:
    class Full:
        def tell(self) -> int:
            return 0

        def write(self, line: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")  # what was not written is tried again

    log = log_to(tmp_path)
    log._file.close()
    log._file = Full()
    for number in range(3):
        log.write(record(number), lambda: body("now", 1))
    log.close()
    assert (log.failure, log.num_written) == ("No space left on device", 0)


def test_a_turn_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    log = log_to(tmp_path)
    log.write(record(0), lambda: {"messages": object()})
    log.write(record(0), lambda: {}["messages"])
    log.write(record(1), lambda: body("now", 1))
    log.close()
    assert (log.num_written, log.num_dropped, log.failure) == (1, 2, "")


def test_a_hash_has_no_digits_that_would_make_it_a_number() -> None:
    words = " ".join(f"word{number}" for number in range(500)) + " 10:15:02"
    assert not [letter for letter in Blotter(b"k" * 32).text(words) if letter.isdigit()]
