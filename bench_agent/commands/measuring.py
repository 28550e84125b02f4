"""What ``run``, ``sweep`` and ``report`` share: a measurement from the flags."""

from __future__ import annotations

import argparse
import math
from datetime import datetime
from pathlib import Path

from ..errors import BenchError
from ..load.shape import Arrivals, LoadShape
from ..measurement import Measurement, measure
from ..metrics.machine import git_revision
from ..metrics.roofline import Limits, limits, measure_rates
from ..report.files import file_name, made_folder
from ..report.progress import LiveProgress
from ..report.record import RunRecord
from ..targets.target import TargetSpec, reach
from ..workload.adjust import Adjustments
from ..workload.plan import Workload
from .options import judgement
from .signals import Signals


def plan_of(
    given: argparse.Namespace, workload: Workload, changes: Adjustments, shape: LoadShape, label: str
) -> Measurement:
    """Raises BenchError for flags that cannot be read, or that the workload has nothing for."""
    untimed = len(workload.sessions) > 1 and not any(session.arrival_s for session in workload.sessions)
    if shape.arrivals is Arrivals.TRACE and untimed:
        raise BenchError(
            f"{workload.name} does not say when its sessions came: all would come at once",
            field="arrivals",
            remedy="pass --rate SESSIONS_PER_SECOND, or --concurrency N",
        )
    return Measurement(
        label=label,
        workload=workload,
        adjustments=changes,
        load=shape,
        judgement=judgement(given),
        git_revision=given.git_revision or git_revision(Path.cwd()),
        warm_up_turns=given.warm_up,
        calibrate=not given.no_calibrate,
        null_seconds=given.null_seconds,
        limits=model_limits(given.limits),
    )


async def measure_target(signals: Signals, spec: TargetSpec, plan: Measurement, folder: Path) -> RunRecord:
    """One target, from its start to its record, with progress. Once it is reached, the first signal stops the load and
    leaves a partial record; any other one cancels. Raises BenchError."""
    async with reach(spec, folder) as target:
        turns = None if plan.load.duration_s is not None else plan.workload.num_turns * plan.load.repeats
        with signals.stopping() as stop, LiveProgress(plan.label, turns) as progress:
            return await measure(plan, target, folder, watch=progress.turn, stop=stop)


def model_limits(text: str | None) -> Limits | None:
    """``PARAMETERS,BYTES`` of the model, on this machine as measured now. Raises BenchError."""
    if text is None:
        return None
    try:
        parameters, weight_bytes = (float(number) for number in text.split(","))
        if not all(0 < number < math.inf for number in (parameters, weight_bytes)):
            raise ValueError
    except ValueError:
        raise BenchError(f"--limits {text!r} is not PARAMETERS,BYTES", remedy="for example 134.5e6,269e6") from None
    rates = measure_rates()
    if rates is None:
        raise BenchError("this machine's limit cannot be measured without torch", remedy="leave --limits out")
    return limits(rates, parameters=parameters, weight_bytes=weight_bytes)


def result_folder(given: argparse.Namespace, label: str) -> Path:
    """Where the result goes; made if need be. Raises BenchError."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return made_folder(given.out or Path("bench-results") / f"{stamp}-{file_name(label)}")
