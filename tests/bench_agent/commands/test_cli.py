"""The commands as a user calls them, against a scripted server in another thread."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from scripted_openai import Script, ScriptedServer

from sessile.bench_agent.cli import main
from sessile.bench_agent.commands import sweep
from sessile.bench_agent.commands.signals import Signals
from sessile.bench_agent.commands.sweep import point_at
from sessile.bench_agent.errors import BenchError
from sessile.bench_agent.load.shape import LoadShape
from sessile.bench_agent.measurement import Measurement
from sessile.bench_agent.metrics.summary import Judgement
from sessile.bench_agent.report.record import RunRecord, read_record
from sessile.bench_agent.targets.target import TargetSpec
from sessile.bench_agent.workload.adjust import Adjustments
from sessile.bench_agent.workload.presets import preset
from sessile.bench_agent.workload.synthetic import synthetic_workload

SAMPLES = Path(__file__).parents[1] / "traces" / "samples"
QUICK = ["--no-calibrate", "--null-seconds", "0", "--warm-up", "1", "--gap", "0"]
KNOWN = ["--server-name", "scripted", "--server-version", "1", "--server-flags", "", "--quantisation", "none"]


@contextmanager
def serving(script: Script) -> Iterator[ScriptedServer]:
    """A scripted server on a loop of its own."""
    loop = asyncio.new_event_loop()
    server = ScriptedServer(script)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def run(server: ScriptedServer, out: Path, *more: str, workload: str = "agent-load") -> int:
    command = ["run", "--target", server.url, "--workload", workload, "--out", str(out), *QUICK, *KNOWN]
    return main([*command, "--git-revision", "abc", *more])


def test_run_compare_and_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    with serving(Script(tpot_s=0.002)) as server:
        flags = ("--sessions", "2", "--output-tokens", "4", "--concurrency", "2")
        assert run(server, a, *flags, "--slo", "ttft=1s", "--price", "in=1,out=2", "--label", "first") == 0
        assert run(server, b, *flags, "--label", "second") == 0
        assert run(server, c, *flags, "--seed", "1") == 0
    record = read_record(a)
    assert record.complete and record.summary.counts.ok == 12 and record.missing() == []
    assert len((a / "turns.jsonl").read_text().splitlines()) == 12
    assert main(["compare", str(a), str(b), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "report.html").exists()
    shown = capsys.readouterr()
    assert "first" in shown.out and "second" in shown.out
    assert main(["compare", str(a), str(c)]) == 1
    assert "another workload" in capsys.readouterr().err


def test_failed_turns_and_a_dead_server_have_their_exit_status(tmp_path: Path) -> None:
    with serving(Script(status=lambda number: 400 if number == 3 else 200)) as server:
        assert run(server, tmp_path / "a", "--sessions", "1", "--output-tokens", "2") == 4
    assert read_record(tmp_path / "a").summary.counts.skipped == 3
    with serving(Script(dies_after=1, status=lambda number: 200)) as server:
        script = server.script
        script.dies_after = None
        script.words = lambda body: _break(script) if len(body["messages"]) > 2 else ["w"]
        assert run(server, tmp_path / "b", "--sessions", "5", "--output-tokens", "2", "--retries", "0") == 3
    record = read_record(tmp_path / "b")
    assert not record.complete and record.ended == "server lost"
    assert (record.summary.counts.ok, record.summary.counts.failed) == (1, 3)


def _break(script: Script) -> list[str]:
    script.dies_after = 0
    return ["w"]


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    def words(body: dict[str, object]) -> list[str]:
        if len(body["messages"]) > 4:  # type: ignore[arg-type]
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            return ["w"] * 2000
        return ["w"]

    with serving(Script(tpot_s=0.02, words=words)) as server:
        assert run(server, tmp_path / "a", "--sessions", "2", "--output-tokens", "1") == 3
    record = read_record(tmp_path / "a")
    assert (record.complete, record.ended) == (False, "interrupted")
    assert (record.summary.counts.ok, record.summary.counts.interrupted) == (2, 1)
    rows = [json.loads(line) for line in (tmp_path / "a" / "turns.jsonl").read_text().splitlines()]
    assert rows[-1]["status"] == "interrupted" and len(rows[-1]["arrivals_s"]) >= 1


def test_ctrl_c_in_the_warm_up(tmp_path: Path) -> None:
    def words(body: dict[str, object]) -> list[str]:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return ["w"] * 500

    with serving(Script(tpot_s=0.02, words=words)) as server:
        assert run(server, tmp_path / "a", "--sessions", "1") == 3
    counts = read_record(tmp_path / "a").summary.counts
    assert (counts.ok, counts.interrupted) == (0, 0)  # nothing of the load was sent any more


STARTS = """#!%s
import signal, sys, time, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--version" in sys.argv:
    sys.exit(0)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("command", "number"),
    [("run", signal.SIGINT), ("run", signal.SIGTERM), ("run", signal.SIGHUP), ("quality", signal.SIGTERM)],
)
def test_a_signal_while_a_server_starts_ends_it(
    command: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never ready, and it does not listen to SIGTERM: the second signal kills it, and what it started."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(STARTS % sys.executable)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    log = tmp_path / "out" / "llama-server.log"
    started: list[psutil.Process] = []

    def kill() -> None:
        while not (log.exists() and log.read_text().endswith("\n")):
            time.sleep(0.01)
        child = psutil.Process(int(log.read_text()))
        started.extend((child, *child.parents()[:1]))
        for _ in range(2):
            os.kill(os.getpid(), number)
            time.sleep(0.1)

    thread = threading.Thread(target=kill)
    thread.start()
    given = ["--serve", "llama-server", "--model", "m.gguf", "--workload", "agent-load", "--out", str(tmp_path / "out")]
    assert main([command, *given]) == 130
    thread.join(10)
    gone, alive = psutil.wait_procs(started, timeout=10)
    assert len(gone) == 2 and not alive


RUNNABLE = (
    "text.jsonl hash.jsonl weka.json swe.traj claude.jsonl codex.jsonl otel.json aiperf.jsonl conversations.jsonl"
)


@pytest.mark.parametrize("name", [*RUNNABLE.split(), "inference_perf.json"])
def test_every_format_can_be_run(name: str, tmp_path: Path) -> None:
    with serving(Script()) as server:
        assert (
            run(server, tmp_path / "r", "--scale", "0.1", "--max-output-tokens", "3", workload=str(SAMPLES / name)) == 0
        )
    assert read_record(tmp_path / "r").summary.counts.ok >= 2


def test_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Script(ttft_s=0.02)) as server:
        command = ["sweep", "--over", "concurrency=1,2,4", "--target", server.url, "--workload", "agent-load"]
        command += ["--sessions", "4", "--output-tokens", "1", "--out", str(tmp_path), "--git-revision", "x"]
        assert main([*command, *QUICK]) == 0
    assert (tmp_path / "knee.png").exists()
    assert (tmp_path / "concurrency-4" / "record.json").exists()
    assert main(["sweep", "--over", "threads=1,2", "--target", "http://x", "--workload", "agent-load"]) == 1
    assert main(["sweep", "--over", "nothing", "--target", "http://x", "--workload", "agent-load"]) == 1
    assert "needs --serve" in capsys.readouterr().err


def swept(server: ScriptedServer, out: Path, over: str, *more: str) -> int:
    command = ["sweep", "--over", over, "--target", server.url, "--workload", "agent-load", "--out", str(out)]
    return main([*command, "--sessions", "2", "--max-turns", "2", "--output-tokens", "1", *QUICK, *KNOWN, *more])


def test_a_swept_rate_is_the_rate_at_which_sessions_come(tmp_path: Path) -> None:
    with serving(Script()) as server:
        assert swept(server, tmp_path, "rate=20,40") == 0
    loads = [read_record(tmp_path / f"rate-{rate}").load for rate in (20, 40)]
    assert [(load.arrivals, load.rate) for load in loads] == [("poisson", 20.0), ("poisson", 40.0)]


def test_a_sweep_keeps_what_it_measured_when_a_point_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def status(number: int) -> int:
        return 400 if number in (5, 6) else 200  # the warm-up of the second point, and again

    with serving(Script(status=status)) as server:
        assert swept(server, tmp_path, "concurrency=1,2,3", "--warm-up", "1") == 1
    shown = capsys.readouterr().out
    assert "concurrency 1" in shown and "concurrency 3" in shown and "concurrency 2 was not measured: " in shown
    assert (tmp_path / "knee.png").exists()


def test_a_sweep_that_is_interrupted_at_its_last_server_tells_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the second point's server starts."""
    measured = sweep.measure_target
    started: list[str] = []

    async def interrupted(signals: Signals, spec: TargetSpec, plan: Measurement, folder: Path) -> RunRecord:
        started.append(plan.label)
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        return await measured(signals, spec, plan, folder)

    monkeypatch.setattr(sweep, "measure_target", interrupted)
    with serving(Script()) as server:
        assert swept(server, tmp_path, "concurrency=1,2,3") == 3
    assert started == ["concurrency 1", "concurrency 2"]
    assert "concurrency 1" in capsys.readouterr().out and (tmp_path / "knee.png").exists()


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ("concurrency=1,two", "'two' is not a number"),
        ("concurrency=1,0", "1 or more"),
        ("concurrency=2,2", "has 2 twice"),
        ("rate=1,nan", "--rate has to be"),
        ("=1", "is not NAME=V1"),
        ("concurrency=,", "is not NAME=V1"),
    ],
)
def test_a_sweep_is_checked_before_anything_is_measured(
    over: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Script()) as server:
        assert swept(server, tmp_path, over) == 1
        assert server.served == []
    assert said in capsys.readouterr().err


def test_a_sweep_with_failed_turns_says_so_by_its_status(tmp_path: Path) -> None:
    with serving(Script(status=lambda number: 400 if number == 3 else 200)) as server:
        assert swept(server, tmp_path, "concurrency=1") == 4


def test_quality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("word word word")
    with serving(Script()) as server:
        command = [
            "quality",
            "--target",
            server.url,
            "--dialect",
            "sessile",
            "--workload",
            "agent-load",
            "--sessions",
            "1",
        ]
        command += ["--reference", "cold", "--max-tokens", "4", "--perplexity", str(text), "--out", str(tmp_path)]
        assert main([*command, "--require-agreement", "1.0"]) == 0
        assert main([*command[:2], server.url, "--dialect", "openai", *command[5:]]) == 1
    record = json.loads((tmp_path / "quality.json").read_text())
    assert record["agreement"]["identical"] == 1.0 and record["agreement"]["answers"] == 6
    assert record["target_quality"]["tool_calls"]["called"] == 0.0
    assert "no way to leave its cache out" in capsys.readouterr().err


def test_quality_says_before_it_asks_what_it_cannot_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Script()) as server:
        command = ["quality", "--target", server.url, "--workload", "agent-load", "--out", str(tmp_path)]
        assert main([*command, "--reference", "cold"]) == 1
        assert main([*command, "--require-agreement", "1.0"]) == 1
        assert main([*command, "--perplexity", str(tmp_path / "none.txt")]) == 1
        (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
        assert main([*command, "--perplexity", str(tmp_path / "bytes.txt")]) == 1
        assert server.served == []
    said = capsys.readouterr().err
    for words in ("no way to leave its cache out", "pass --reference", "none.txt cannot be read", "not text in UTF-8"):
        assert words in said


def test_convert_and_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "w.jsonl"
    assert main(["convert", str(SAMPLES / "claude.jsonl"), str(result), "--to", "native"]) == 0
    assert main(["convert", str(result), str(tmp_path / "w.json"), "--to", "otel"]) == 0
    assert "native to otel: 1 sessions, 5 turns" in capsys.readouterr().out
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$ref"].endswith("RunRecord")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workload", "nobody"], "there are: agent-load"),
        (["--workload", "missing.jsonl"], "no file missing.jsonl"),
        (["--workload", "agent-load", "--slo", "fast"], "not a bound"),
        (["--workload", "agent-load", "--extra", "["], "--extra is not"),
        (["--workload", "agent-load", "--header", "x"], "NAME=VALUE"),
        (["--workload", "agent-load", "--limits", "many"], "PARAMETERS,BYTES"),
        (["--workload", "agent-load"], "answers at"),
        (["--workload", "agent-load", "--rate", "nan"], "--rate: 'nan' is not a number above 0"),
        (["--workload", "agent-load", "--sessions", "-1"], "--sessions: '-1' is not a whole number of 1 or more"),
        (["--workload", "agent-load", "--sessions", "0"], "--sessions"),
        (["--workload", "agent-load", "--concurrency", "two"], "--concurrency: 'two' is not a whole number"),
        (["--workload", "agent-load", "--gap-cap", "-1"], "--gap-cap"),
        (["--workload", "agent-load", "--gap", "nan"], "not a distribution"),
        (["--workload", "agent-load", "--gap", "uniform:2,1"], "not a distribution"),
        (["--workload", "agent-load", "--gap", ""], "not a distribution"),
        (["--workload", "agent-load", "--slo", ""], "not a bound"),
        (["--workload", "agent-load", "--price", ""], "no price"),
        (["--workload", "agent-load", "--price", "in=1", "--machine-hour", "1"], "pass one of them"),
        (["--workload", "agent-load", "--server-flags", '"x'], "cannot be taken apart"),
        (["--workload", "agent-load", "--header", "a=b\nc: d"], "in one line"),
        (["--workload", "agent-load", "--session-header", "a b"], "no header's name"),
        (["--workload", "agent-load", "--limits", "1,nan"], "PARAMETERS,BYTES"),
        (["--workload", "agent-load", "--max-context", "10"], "nothing is left of agent-load"),
        (
            ["--workload", "agent-load", "--concurrency", "4", "--rate", "2"],
            "--concurrency has no meaning with poisson",
        ),
        (["--workload", "agent-load", "--out", "/dev/null/x"], "/dev/null/x cannot be written: Not a directory"),
        (["--workload", "agent-load", "--arrivals", "trace"], "does not say when its sessions came"),
        (["--workload", "agent-load", "--serve-flags", "--eager"], "begins with a dash is written FLAG=VALUE"),
        (["--workload", "agent-load", "--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_errors_are_told_in_a_sentence(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--target", "http://127.0.0.1:9", "--out", str(tmp_path), *flags]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("wire", "name"), [("http", "HTTP"), ("grpc", "gRPC")])
def test_overhead(wire: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overhead", "--wire", wire, "--sessions", "2", "--seconds", "2.5"]) == 0
    assert f"2 sessions of a null server by {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [("--sessions", "0", "a whole number of 1 or more"), ("--seconds", "nan", "a number above 0")],
)
def test_overheads_flags_are_checked(flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["overhead", flag, value]) == 1
    assert f"{flag}: {value!r} is not {said}" in capsys.readouterr().err


def test_a_servers_flag_is_swept_by_starting_it_with_each_value() -> None:
    spec = TargetSpec(serve="sessile", serve_flags=("--dtype", "float32"))
    workload = synthetic_workload("w", preset("agent-load"), sessions=1, seed=0)
    plan = Measurement(
        label="x",
        workload=workload,
        adjustments=Adjustments(),
        load=LoadShape(),
        judgement=Judgement(),
        git_revision="x",
    )
    changed, labelled = point_at("threads", "2", spec, plan)
    assert changed.serve_flags == ("--dtype", "float32", "--threads", "2") and labelled.label == "threads 2"
    same, loaded = point_at("concurrency", "8", spec, plan)
    assert same == spec and loaded.load.concurrency == 8
    with pytest.raises(BenchError, match="not a number"):
        point_at("rate", "fast", spec, plan)


def test_a_run_says_what_was_left_out_of_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text((SAMPLES / "conversations.jsonl").read_text() + '{"messages": [\n')
    with serving(Script()) as server:
        assert run(server, tmp_path / "a", workload=str(trace)) == 1
        assert "trace.jsonl:2: not JSON" in capsys.readouterr().err
        assert run(server, tmp_path / "a", "--skip-bad", "--max-output-tokens", "2", workload=str(trace)) == 0
    said = capsys.readouterr().err
    assert "note: lines left out: 1" in said and "note: left out: trace.jsonl:2: not JSON" in said
    assert "lines left out: 1" in read_record(tmp_path / "a").workload.notes
