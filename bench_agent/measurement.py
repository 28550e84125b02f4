"""One measurement: warm-up, load, meters, null server, record. All commands that measure speed go through here."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from .errors import TargetError
from .load.collector import collector_off
from .load.overhead import Overhead, measure_overhead
from .load.runner import Ended, LoadRunner, Outcome
from .load.shape import LoadShape
from .load.warm_up import prefill_speed, warm_up
from .metrics.loop_lag import LagMeter
from .metrics.machine import BusyMeter, MachineLoad, hardware
from .metrics.prefill_fit import PrefillFit
from .metrics.process_usage import ProcessMeter, ProcessUsage
from .metrics.records import TurnRecord
from .metrics.roofline import Limits
from .metrics.summary import Judgement, summarise
from .report.record import (
    RECORD_FILE,
    TURNS_FILE,
    ClientOverhead,
    Provenance,
    RunRecord,
    WorkloadFacts,
    write_record,
)
from .report.turns_file import TurnsFile
from .stopping import unless
from .targets.target import Target
from .workload.adjust import Adjustments
from .workload.plan import Workload

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured and how. ``null_seconds``: 0 leaves the null server out."""

    label: str
    workload: Workload
    adjustments: Adjustments
    load: LoadShape
    judgement: Judgement
    git_revision: str | None
    warm_up_turns: int = 2
    calibrate: bool = True
    null_seconds: float = 2.0
    limits: Limits | None = None


async def measure(
    plan: Measurement,
    target: Target,
    folder: Path,
    *,
    watch: Callable[[TurnRecord], None] = lambda record: None,
    stop: asyncio.Event | None = None,
) -> RunRecord:
    """Measure one target, and leave the record and the turns in ``folder``, which has to be there.

    When ``stop`` is set, the server is gone or the disk is full, what there is by then is recorded and marked. Raises
    TargetError when not even the warm-up succeeds, BenchError when the record cannot be written.
    """
    stop = stop or asyncio.Event()
    prefill = await _prepare(plan, target, stop)
    (folder / RECORD_FILE).unlink(missing_ok=True)  # an older one would be beside turns that are not its own
    busy = BusyMeter()
    server = None if target.pid is None else ProcessMeter(target.pid)
    lag = LagMeter()
    with collector_off(), TurnsFile(folder / TURNS_FILE) as turns:

        def keep(record: TurnRecord) -> None:
            turns.keep(record)
            watch(record)

        lag.start()
        if server is not None:
            server.start()
        try:
            runner = LoadRunner(plan.workload, target.driver, plan.load, watch=keep, is_there=target.is_there)
            outcome = await runner.run(stop, turns.failed)
        finally:
            found_lag = await lag.stop()
            usage = None if server is None else server.stop()
            load = busy.stop(None if usage is None else usage.cpu_s)
    client = ClientOverhead(lag=found_lag)
    added = await unless(stop, _added(plan, target.driver.wire)) if outcome.ended is Ended.DONE else None
    if added is not None:
        client = ClientOverhead(lag=found_lag, null_server_p50_s=added.ttft_p50_s, null_server_p99_s=added.ttft_p99_s)
    record = _record(plan, target, outcome, usage, client, prefill, load)
    write_record(record, folder)
    return record


async def _added(plan: Measurement, wire: str) -> Overhead | None:
    """What the harness adds with as many sessions; None when that cannot be measured: the run's record matters more."""
    if not plan.null_seconds:
        return None
    try:
        return await measure_overhead(min(plan.load.concurrency, 256), plan.null_seconds, wire=wire)
    except TargetError as error:
        logger.warning("the harness itself was not measured: %s", error)
        return None


async def _prepare(plan: Measurement, target: Target, stop: asyncio.Event) -> PrefillFit | None:
    """Warm-up and cold prompts, given up when ``stop`` is set."""

    async def work() -> PrefillFit | None:
        retries = plan.load.retries
        await warm_up(target.driver, plan.warm_up_turns, retries)
        return await prefill_speed(target.driver, target.context_length, retries) if plan.calibrate else None

    return await unless(stop, work())


def _record(
    plan: Measurement,
    target: Target,
    outcome: Outcome,
    usage: ProcessUsage | None,
    client: ClientOverhead,
    prefill: PrefillFit | None,
    load: MachineLoad,
) -> RunRecord:
    judgement = msgspec.structs.replace(plan.judgement, prefill=prefill)
    return RunRecord(
        label=plan.label,
        complete=outcome.ended is Ended.DONE,
        ended=outcome.ended,
        provenance=Provenance(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            server=target.facts,
            hardware=hardware(),
            machine_load=load,
            git_revision=plan.git_revision,
            harness_version=_version(),
        ),
        workload=_workload_facts(plan.workload, plan.adjustments),
        load=plan.load,
        summary=summarise(outcome.turns, outcome.sessions, outcome.repeats, judgement),
        repeats=outcome.repeats,
        client=client,
        prefill=prefill,
        server_process=usage,
        limits=plan.limits,
    )


def _workload_facts(workload: Workload, changes: Adjustments) -> WorkloadFacts:
    return WorkloadFacts(
        name=workload.name,
        format=workload.format,
        sha256=workload.sha256(),
        source_sha256=workload.source_sha256,
        seed=workload.seed,
        sessions=len(workload.sessions),
        turns=workload.num_turns,
        adjustments=changes,
        notes=workload.notes,
    )


def _version() -> str:
    try:
        return importlib.metadata.version("sessile")
    except importlib.metadata.PackageNotFoundError:
        return "unpackaged"
