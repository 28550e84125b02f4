"""The machine and the checkout that a result comes from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import msgspec
import psutil


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What the load and, if it is local, the server ran on."""

    cpu: str
    cores: int
    memory_bytes: int
    accelerators: tuple[str, ...]
    system: str
    python: str


class MachineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the machine was before the run, and (``other_cpu_share``) with anything but the run and the server.

    The share is of all cores' time during the run; None: not known.
    """

    load_average_before: tuple[float, float, float]
    other_cpu_share: float | None = None


def hardware() -> Hardware:
    """Of this machine."""
    return Hardware(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        accelerators=_accelerators(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def git_revision(folder: Path) -> str | None:
    """The commit of the checkout that holds ``folder``, with ``+changes`` where files differ; None outside of one."""
    if shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    revision = git("rev-parse", "HEAD")
    if revision is None:
        return None
    return revision + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")


class BusyMeter:
    """Processor time of the whole machine against that of the harness and the server."""

    def __init__(self) -> None:
        self._before = self._times()
        self._load = os.getloadavg()

    def stop(self, server_cpu_s: float | None) -> MachineLoad:
        """``server_cpu_s``, since it began; None: the server is elsewhere, or its share is not known."""
        passed, busy, own = (after - before for after, before in zip(self._times(), self._before, strict=True))
        other: float | None = None
        if server_cpu_s is not None and passed > 0:
            other = min(1.0, max(0.0, busy - own - server_cpu_s) / passed)
        return MachineLoad(load_average_before=self._load, other_cpu_share=other)

    @staticmethod
    def _times() -> tuple[float, float, float]:
        """Seconds of all processors, those in which they were busy, and the harness's own."""
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        own = os.times()
        whole = sum(times[:8])
        return whole, whole - idle, own.user + own.system


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _accelerators() -> tuple[str, ...]:
    if shutil.which("nvidia-smi") is None:
        return ()
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return tuple(done.stdout.strip().splitlines()) if done.returncode == 0 else ()
