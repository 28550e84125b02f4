"""``bench-agent report``: the standard report of this repository, in a bounded time.

One server on its default model, measured by HTTP and by gRPC on one workload, over a rising number of sessions, checked
for equal answers cold and warm, beside what the harness adds and what the machine could do at most. Steps for which no
time is left are left out, and the report says so.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BenchError
from ..load.overhead import Overhead, measure_overhead
from ..load.shape import LoadShape
from ..measurement import Measurement, measure
from ..metrics.machine import git_revision
from ..metrics.roofline import Limits
from ..metrics.summary import Judgement
from ..quality.agreement import Agreement, agreement, answer_again, converse
from ..report.files import made_folder
from ..report.knee import plot_knee
from ..report.progress import LiveProgress
from ..report.record import RunRecord
from ..report.standard import StandardReport, write_standard_report
from ..report.terminal import terminal
from ..report.wording import WIRES
from ..targets.launchers import ServeRequest, launcher_named
from ..targets.server_process import ServerProcess
from ..targets.target import TargetSpec, reach
from ..workload.adjust import Adjustments, adjust
from ..workload.plan import Workload
from ..workload.presets import preset
from ..workload.synthetic import synthetic_workload
from .compare import write_comparison
from .flag_types import positive, whole, words
from .measuring import model_limits
from .quality import cold_conversations
from .signals import Signals

EMBEDDED_MODEL = "134.5e6,269e6"  # SmolLM2-135M: parameters, and bytes of its weights in bfloat16
WORKLOAD = "agent-load"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    out = Path("docs/benchmarks")
    parser.add_argument("--out", type=Path, default=out, metavar="FOLDER", help=f"where the report goes ({out})")
    parser.add_argument("--budget", type=positive, default=420.0, metavar="S", help="no step starts later (420)")
    parser.add_argument(
        "--sessions", type=_numbers, default=(1, 2, 4, 8), metavar="N1,N2,…", help="sessions at a time in the sweep"
    )
    parser.add_argument("--max-turns", type=whole(1), metavar="N", help="turns a session (the preset's 6)")
    parser.add_argument("--repeats", type=whole(1), default=4, metavar="N", help="of the runs that are compared")
    parser.add_argument("--serve-flags", type=words, default=(), metavar="FLAGS", help="flags of the server")
    parser.add_argument("--model", metavar="NAME", help="another model than the embedded one")
    parser.add_argument("--quantisation", default="bf16", metavar="TEXT", help="for the record (bf16)")
    parser.add_argument(
        "--limits", default=EMBEDDED_MODEL, metavar="PARAMETERS,BYTES", help="of the model; none: leave out"
    )
    parser.add_argument(
        "--peer", metavar="NAME", help="another server to start and compare with: llama-cpp-python, vllm"
    )
    parser.add_argument("--peer-python", metavar="PATH", help="the interpreter of the peer's environment")
    parser.add_argument("--peer-model", metavar="PATH", help="the peer's model")
    parser.add_argument("--peer-flags", type=words, default=(), metavar="FLAGS", help="flags of the peer, in one text")
    parser.add_argument("--peer-quantisation", default="unknown", metavar="TEXT", help="for the record")
    parser.add_argument("--git-revision", metavar="TEXT", help="for the record, outside of a checkout")


def execute(given: argparse.Namespace) -> int:
    """0: a report was written. Raises BenchError when nothing could be measured."""
    began = time.monotonic()
    records = given.out / "records"
    made_folder(records)
    limits = None if given.limits == "none" else model_limits(given.limits)
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as scratch:
        run = _ReportRun(given, records, Path(scratch), limits, began)
        asyncio.run(run.run())
    if not run.compared:
        raise BenchError("nothing was measured in time", remedy="give it more: --budget SECONDS")
    write_comparison(run.compared, run.folders, given.out)
    knee: int | None = None
    if len(run.swept) > 1:
        knee = plot_knee("sessions at a time", run.points, run.swept, given.out)[1]
    report = StandardReport(
        compared=tuple(run.compared),
        swept=tuple(run.swept),
        points=tuple(run.points),
        knee=knee,
        agreement=run.agreement,
        overhead=tuple(run.overhead),
        left_out=tuple(run.left_out),
    )
    terminal().print(f"report: {write_standard_report(report, given.out)}", soft_wrap=True)
    return 0


@dataclass
class _ReportRun:
    """Runs the steps, the weightiest first, while there is time. Owns what they found."""

    given: argparse.Namespace
    records: Path
    scratch: Path
    limits: Limits | None
    began: float
    compared: list[RunRecord] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    swept: list[RunRecord] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    agreement: Agreement | None = None
    overhead: list[Overhead] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """All steps. The server runs for the first ones only, so that it does not disturb the peer."""
        with Signals() as signals:
            for wire in WIRES:
                await self._step(f"the harness by {wire}", lambda wire=wire: self._own_overhead(wire))  # type: ignore[misc]
            server = ServerProcess(launcher_named("sessile").plan(self._request()))
            await server.start()
            http = server.plan.ready_url.removesuffix("/ready")
            grpc = f"grpc://127.0.0.1:{server.plan.command[server.plan.command.index('--grpc-port') + 1]}"
            with signals.stopping() as self._stop:
                try:
                    await self._step("one session by gRPC", lambda: self._compare("sessile, gRPC", grpc, server))
                    await self._step("one session by HTTP", lambda: self._compare("sessile, HTTP", http, server))
                    await self._step("equal answers", lambda: self._cold_answers(http))
                    for number in self.given.sessions:
                        await self._step(f"{number} sessions", lambda n=number: self._sweep(n, http, server))  # type: ignore[misc]
                finally:
                    await server.stop()
                if self.given.peer is not None:
                    await self._step(self.given.peer, self._peer)

    async def _step(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        if self._stop.is_set() or time.monotonic() - self.began > self.given.budget:
            self.left_out.append(name)
            return
        await work()

    async def _compare(self, label: str, address: str, server: ServerProcess) -> None:
        record = await self._measure(label, self._spec(address, server), LoadShape(repeats=self.given.repeats), 2)
        self.compared.append(record)
        self.folders.append(self.records / _file_name(label))

    async def _sweep(self, sessions: int, address: str, server: ServerProcess) -> None:
        label = f"{sessions} sessions"
        load = LoadShape(concurrency=sessions, seed=1)
        self.swept.append(await self._measure(label, self._spec(address, server), load, max(sessions, 2)))
        self.points.append(str(sessions))

    async def _peer(self) -> None:
        given = self.given
        spec = TargetSpec(
            serve=given.peer,
            serve_python=given.peer_python,
            serve_flags=given.peer_flags,
            model=given.peer_model,
            quantisation=given.peer_quantisation,
        )
        record = await self._measure(given.peer, spec, LoadShape(repeats=given.repeats), 2)
        self.compared.append(record)
        self.folders.append(self.records / _file_name(given.peer))

    async def _measure(self, label: str, spec: TargetSpec, load: LoadShape, sessions: int) -> RunRecord:
        workload, changes = self._workload(sessions, load.seed)
        plan = Measurement(
            label=label,
            workload=workload,
            adjustments=changes,
            load=load,
            judgement=Judgement(),
            git_revision=self.given.git_revision or git_revision(Path.cwd()),
            calibrate=not self.swept and load.concurrency == 1,
            null_seconds=0.0,
            limits=self.limits,
        )
        folder = made_folder(self.records / _file_name(label))
        async with reach(spec, self.scratch) as target:
            with LiveProgress(label, workload.num_turns * load.repeats) as progress:
                return await measure(plan, target, folder, watch=progress.turn, stop=self._stop)

    async def _cold_answers(self, address: str) -> None:
        workload, _ = self._workload(1, 2)
        async with reach(TargetSpec(address=address), self.scratch) as target:
            answered = await converse(workload, target.driver.conversation, 32)
            again = await answer_again(answered, cold_conversations(target, secrets.token_hex(4)))
        self.agreement = agreement(answered, again)

    async def _own_overhead(self, wire: str) -> None:
        self.overhead.append(await measure_overhead(64, 5.0, wire=wire))

    def _workload(self, sessions: int, seed: int) -> tuple[Workload, Adjustments]:
        changes = Adjustments(max_turns=self.given.max_turns, seed=seed)
        workload = synthetic_workload(WORKLOAD, preset(WORKLOAD), sessions=sessions, seed=seed)
        return adjust(workload, changes), changes

    def _spec(self, address: str, server: ServerProcess) -> TargetSpec:
        request = self._request()
        return TargetSpec(
            address=address,
            server_name="sessile",
            server_version=launcher_named("sessile").version(request),
            server_flags=request.flags,
            quantisation=self.given.quantisation,
            model_name=self.given.model or "smollm2-135m",
            server_pid=server.pid,
            server_start_s=server.start_s,
        )

    def _request(self) -> ServeRequest:
        return ServeRequest(self.given.model, self.given.serve_flags, "http", self.scratch)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(whole(1), text.split(",")))


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in label).strip("-").replace("--", "-")
