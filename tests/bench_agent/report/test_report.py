"""Records, comparisons, tables and plots."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from rich.console import Console

from sessile.bench_agent.commands.compare import write_comparison
from sessile.bench_agent.errors import BenchError, CompareError
from sessile.bench_agent.load.overhead import Overhead
from sessile.bench_agent.load.runner import Ended
from sessile.bench_agent.load.shape import LoadShape
from sessile.bench_agent.metrics.machine import Hardware, MachineLoad
from sessile.bench_agent.metrics.process_usage import ProcessUsage
from sessile.bench_agent.metrics.records import RepeatRecord, SessionRecord, TurnRecord
from sessile.bench_agent.metrics.roofline import MachineRates, limits
from sessile.bench_agent.metrics.slo import Slo
from sessile.bench_agent.metrics.summary import Judgement, summarise
from sessile.bench_agent.quality.agreement import Agreement
from sessile.bench_agent.report.comparison import check_comparable, distinct_labels, warnings_of
from sessile.bench_agent.report.knee import knee_of, plot_knee
from sessile.bench_agent.report.plots import read_turns
from sessile.bench_agent.report.record import (
    TURNS_FILE,
    ClientOverhead,
    Provenance,
    RunRecord,
    ServerFacts,
    WorkloadFacts,
    read_record,
    record_schema,
    write_record,
)
from sessile.bench_agent.report.rows import rows_of
from sessile.bench_agent.report.standard import StandardReport, write_standard_report
from sessile.bench_agent.report.style import face, legend_below, new_figure, plain_ticks, plot_labels, style
from sessile.bench_agent.report.table import markdown_table, print_table
from sessile.bench_agent.report.terminal import terminal
from sessile.bench_agent.workload.adjust import Adjustments

ROOT = Path(__file__).resolve().parents[3]


def turns_of(speed: float) -> list[TurnRecord]:
    return [
        TurnRecord(
            repeat=repeat, session=f"s{n}", turn=t, first=t == 0, started_s=t * speed, ended_s=(t + 0.9) * speed,
            arrivals_s=tuple(0.2 * speed + 0.02 * speed * i for i in range(8)), arrived_tokens=(1,) * 8,
            prompt_tokens=1000 + 100 * t, completion_tokens=8, cached_tokens=900, reusable_share=0.9,
            by_source={"computed": 100 + 100 * t, "device": 900},
        )
        for repeat in range(2) for n in range(3) for t in range(4)
    ]  # fmt: skip


def record(label: str = "one", speed: float = 1.0, **changes: Any) -> RunRecord:
    sessions = [SessionRecord(repeat=r, session=f"s{n}", started_s=0, ended_s=4 * speed, turns=4, ok=True)
                for r in range(2) for n in range(3)]  # fmt: skip
    repeats = (RepeatRecord(repeat=0, wall_s=4 * speed), RepeatRecord(repeat=1, wall_s=4.1 * speed))
    server = ServerFacts(
        name="srv", version="1", model="m", quantisation="bf16", flags=(), address="http://127.0.0.1:1", wire="http",
        dialect="openai", start_s=2.0,
    )  # fmt: skip
    base: dict[str, Any] = {
        "label": label, "complete": True, "ended": Ended.DONE,
        "provenance": Provenance(
            created_at="2026-01-01T00:00:00+00:00", server=server,
            hardware=Hardware(cpu="c", cores=2, memory_bytes=2**34, accelerators=(), system="Linux", python="3.11"),
            machine_load=MachineLoad(load_average_before=(0.1, 0.1, 0.1), other_cpu_share=0.01),
            git_revision="abc", harness_version="0",
        ),
        "workload": WorkloadFacts(name="w", format="synthetic", sha256="f" * 64, source_sha256="", seed=0, sessions=3,
                                  turns=12, adjustments=Adjustments(), notes=()),
        "load": LoadShape(concurrency=2, repeats=2),
        "summary": summarise(turns_of(speed), sessions, repeats, Judgement(slo=Slo(ttft=0.5))),
        "repeats": repeats, "client": ClientOverhead(lag=None, null_server_p99_s=0.001),
        "server_process": ProcessUsage(peak_memory_bytes=10**9, cpu_s=3.0, wall_s=4.0, processes=2),
        "limits": limits(MachineRates(gemm_flops=1e12, stream_bytes=3e10, threads=2), parameters=1e8, weight_bytes=2e8),
    }  # fmt: skip
    return RunRecord(**(base | changes))


def changed_server(one: RunRecord, **changes: Any) -> RunRecord:
    server = msgspec.structs.replace(one.provenance.server, **changes)
    return msgspec.structs.replace(one, provenance=msgspec.structs.replace(one.provenance, server=server))


def test_a_record_is_read_as_it_was_written_and_fits_its_schema(tmp_path: Path) -> None:
    path = write_record(record(), tmp_path)
    assert read_record(tmp_path) == read_record(path) == record()
    jsonschema.validate(json.loads(path.read_text()), record_schema())


def test_the_schema_in_the_docs_is_the_one_of_the_code() -> None:
    kept = ROOT / "docs" / "benchmarks" / "record.schema.json"
    assert json.loads(kept.read_text()) == record_schema(), (
        "run: bench-agent schema > docs/benchmarks/record.schema.json"
    )


def test_what_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match="cannot be read"):
        read_record(tmp_path)
    (tmp_path / "record.json").write_text('{"schema": 1}')
    with pytest.raises(CompareError, match="not a record"):
        read_record(tmp_path)


@pytest.mark.parametrize("field", ["name", "version", "model", "quantisation", "flags"])
def test_a_record_without_its_provenance_cannot_be_compared(field: str) -> None:
    with pytest.raises(CompareError, match=f"lacks .*{field.removesuffix('s')}"):
        check_comparable([changed_server(record(), **{field: None})])


def test_other_workloads_and_loads_are_refused() -> None:
    one = record()
    check_comparable([one, record("two", 2.0)])
    other = msgspec.structs.replace(one.workload, sha256="0" * 64)
    with pytest.raises(CompareError, match="another workload"):
        check_comparable([one, msgspec.structs.replace(one, workload=other)])
    with pytest.raises(CompareError, match="concurrency 8 and 2"):
        check_comparable([one, msgspec.structs.replace(one, load=LoadShape(concurrency=8, repeats=2))])


def test_a_reader_is_warned() -> None:
    busy = MachineLoad(load_average_before=(9, 9, 9), other_cpu_share=0.5)
    noisy = msgspec.structs.replace(
        record("noisy", complete=False, ended=Ended.INTERRUPTED),
        provenance=msgspec.structs.replace(record().provenance, machine_load=busy),
    )
    found = " ".join(warnings_of([record(), changed_server(noisy, quantisation="q4")]))
    lucky = msgspec.structs.replace(
        record().summary, hit_rates=msgspec.structs.replace(record().summary.hit_rates, server=0.99)
    )
    assert "its cache was not empty" in " ".join(warnings_of([record(summary=lucky)]))
    assert "partial" in found and "50%" in found and "quantisations differ" in found
    assert warnings_of([record(), record("two", 1.01)]) == []
    twice = distinct_labels([record(), record(), record("one (2)"), record()])
    assert [one.label for one in twice] == ["one", "one (2)", "one (2) (2)", "one (3)"]
    assert warnings_of(twice[:2]) == ["one and one (2) are the same result"]
    strict = record(summary=summarise(turns_of(1.0), [], record().repeats, Judgement(slo=Slo(ttft=0.1))))
    assert "goodput is within different bounds: ttft ≤ 100 ms; ttft ≤ 500 ms" in warnings_of([record(), strict])
    assert all(row.best is None for row in rows_of([record(), strict]) if row.name == "goodput")


def test_a_comparison_writes_a_page_with_its_plots(tmp_path: Path) -> None:
    records = [record("fast"), record("slow", 3.0)]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, speed in zip(folders, (1.0, 3.0), strict=True):
        folder.mkdir()
        lines = b"".join(msgspec.json.encode(turn) + b"\n" for turn in turns_of(speed))
        (folder / TURNS_FILE).write_bytes(lines + b'{"repeat": 1, "ses')
    assert len(read_turns(folders[0])) == 24
    page = write_comparison(records, folders, tmp_path / "out").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "fast" in page and "git revision" in page and 'class="best"' in page
    for name in ("ttft", "turns", "speed", "tokens"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 5000


def test_a_comparison_without_turns_has_the_plots_that_it_can(tmp_path: Path) -> None:
    page = write_comparison([record()], [tmp_path], tmp_path / "out").read_text()
    assert page.count("data:image/png;base64,") == 2


@pytest.mark.parametrize("schema", [None, "sessile-bench-record-0"])
def test_a_record_of_another_schema_is_refused(schema: str | None, tmp_path: Path) -> None:
    path = write_record(record(), tmp_path)
    row = json.loads(path.read_text()) | {"schema": schema}
    path.write_text(json.dumps({key: value for key, value in row.items() if value is not None}))
    with pytest.raises(CompareError, match="is of the schema"):
        read_record(path)


def test_a_record_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_record(record(), tmp_path)

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BenchError, match=r"record.json cannot be written: No space left.*--out"):
        write_record(record("other"), tmp_path)
    assert read_record(path) == record() and [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(("low", "high"), [(0.1, 30_000.0), (1e-5, 1e5), (98.0, 103.0), (12.0, 4_000.0), (0.011, 0.05)])
@pytest.mark.parametrize("most", [7, 12])
def test_ticks_say_different_numbers_and_have_room(low: float, high: float, most: int) -> None:
    _, (panel,) = new_figure()
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    plain_ticks(panel.xaxis, most)
    shown = [label.get_text() for label in panel.get_xticklabels()]
    assert 3 <= len(shown) <= most and len(set(shown)) == len(shown)
    assert [float(text.replace(",", "")) for text in shown] == pytest.approx(list(panel.get_xticks()))


def test_long_labels_of_a_plot_are_told_apart() -> None:
    long = [f"a server with a very long name, build {n} (Q4_K_M, 8 threads)" for n in range(8)]
    shown = plot_labels(long, 22)
    assert len(set(shown)) == 8 and max(map(len, shown)) <= 22
    assert all(f"build {n}" in text for n, text in enumerate(shown))
    assert plot_labels(["same", "same", "_x"]) == ["1: same", "2: same", " _x"]
    assert (
        len({json.dumps([look.line, look.mark, look.hatch, face(n)]) for n in range(10) for look in [style(n)]}) == 10
    )


@pytest.mark.parametrize("number", [1, 8, 20])
def test_a_legend_stays_in_its_figure(number: int) -> None:
    figure, panels = new_figure(9.0, 4.2, columns=2)
    for n, label in enumerate(plot_labels([f"a server with a long name, number {n} of all" for n in range(number)])):
        panels[n % 2].plot([1, 2], [n, n], label=label)
    legend_below(figure, panels)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == number
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_a_sweep_of_one_point_and_of_words_is_drawn(tmp_path: Path) -> None:
    for folder, points in ((tmp_path / "one", ["4"]), (tmp_path / "words", ["float32", "bfloat16"])):
        folder.mkdir()
        path, knee = plot_knee("x", points, [record(point) for point in points], folder)
        assert path.stat().st_size > 5000 and knee is None


def test_of_results_that_say_the_same_none_is_best() -> None:
    assert all(row.best is None for row in rows_of([record("a"), record("b")]))
    assert any(row.best == 0 for row in rows_of([record("a"), record("b", 2.0)]))


def test_off_a_terminal_a_table_is_as_wide_as_it_needs_to_be() -> None:
    file = io.StringIO()
    print_table([record(f"a server with a rather long name {n}") for n in range(8)], Console(file=file))
    assert all(f"long name {n} " in file.getvalue() for n in range(8))


HOSTILE = "[/red] :smile: [bold] a|b\n$x_{$ _"


def test_labels_and_errors_are_shown_as_they_are(tmp_path: Path) -> None:
    """Whatever a user or a server wrote means nothing to the terminal, the page, Markdown or the plots."""
    summary = msgspec.structs.replace(record().summary, errors={"[/x] boom": 2})
    records = [record(HOSTILE, summary=summary), record("_hidden", 2.0), record("$\\frac{$")]
    console = terminal()
    with console.capture() as shown:
        print_table(records, console)
    assert "[/red] :smile: [bold]" in shown.get() and "2 times: [/x] boom" in shown.get()
    assert markdown_table(records).splitlines()[0] == r"| | [/red] :smile: [bold] a\|b $x_{$ _ | _hidden | $\frac{$ |"
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / TURNS_FILE).write_bytes(b"".join(msgspec.json.encode(turn) + b"\n" for turn in turns_of(1.0)))
    page = write_comparison(records, [folder] * 3, tmp_path / "out").read_text()
    assert "[/red] :smile:" in page and page.count("data:image/png;base64,") == 4


def test_tables() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    print_table([record("fast"), record("slow", 2.0)], console)
    shown = console.export_text()
    assert "TTFT, later turns, p50" in shown and "200 ms" in shown and "400 ms" in shown
    names = [row.name for row in rows_of([record()])]
    for measure in ("TTFT, first turns", "TTFT, later turns", "TPOT", "ITL", "turn, end to end", "task"):
        assert {f"{measure}, p50", f"{measure}, p90", f"{measure}, p99"} <= set(names)
    assert "device 21,600" in shown and "limit of this machine" in shown
    lines = markdown_table([record("fast"), record("slow", 2.0)]).splitlines()
    assert lines[0] == "| | fast | slow |"
    assert "**200 ms (200–200)**" in next(line for line in lines if line.startswith("| TTFT, later turns, p50"))


def test_the_standard_report_tells_what_was_left_out(tmp_path: Path) -> None:
    found = Agreement(
        answers=6, identical=1.0, before_difference=1.0, unit="tokens", compared_logprobs=9,
        mean_logprob_difference=0.0, largest_logprob_difference=0.0, first_differences=(),
    )  # fmt: skip
    overhead = Overhead(
        wire="grpc",
        sessions=64, turns=100, pieces=4800, pieces_per_s=2000.0, ttft_p50_s=0.001, ttft_p99_s=0.002,
        piece_p50_s=0.0002, piece_p99_s=0.001,
    )  # fmt: skip
    report = StandardReport(
        compared=(record("gRPC"), record("HTTP", 1.1)), swept=(record("1"), record("2", 0.6)), points=("1", "2"),
        knee=1,
        agreement=found, overhead=(overhead,), left_out=("8 sessions",),
    )  # fmt: skip
    plot_knee("sessions at a time", report.points, report.swept, tmp_path)
    text = write_standard_report(report, tmp_path).read_text()
    assert "Left out, for want of time: 8 sessions." in text and "| 2 (knee) |" in text
    assert "![knee](knee.png)" in text and "![ttft]" not in text
    assert "100.0% of 6 answers identical" in text and "2.00 ms" in text and "1000 GFLOP/s" in text


def test_the_knee_is_where_more_brings_little() -> None:
    assert knee_of([1, 2, 4, 8, 16], [10, 20, 38, 41, 42]) == 2
    assert knee_of([1, 2], [1, 2]) is None
    assert knee_of([1, 2, 3], [5, 4, 3]) is None


@pytest.mark.parametrize("points", [["1", "2", "4"], ["a", "b", "c"]])
def test_a_knee_plot(points: list[str], tmp_path: Path) -> None:
    records = [record("1", 1.0), record("2", 0.5), record("4", 0.45)]
    path, knee = plot_knee("sessions at a time", points, records, tmp_path)
    assert path.stat().st_size > 5000 and knee == 1
