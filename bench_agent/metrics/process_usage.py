"""Memory and processor time of a local server: of its process and all that it started."""

from __future__ import annotations

import threading

import msgspec
import psutil

_PERIOD_S = 0.25


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Of the server's processes together. Proportional memory where the system tells it, else resident memory."""

    peak_memory_bytes: int
    cpu_s: float
    wall_s: float
    processes: int


class ProcessMeter:
    """Watches a process and its children from a thread of its own, between ``start`` and ``stop``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._processes = 0
        self._cpu: dict[int, float] = {}
        self._cpu_before: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="process-meter")
        self._began = 0.0

    def start(self) -> None:
        """Begin to watch."""
        self._cpu_before = _cpu_times(self._tree())
        self._began = _now()
        self._thread.start()

    def stop(self) -> ProcessUsage:
        """End. Zeros when the process was gone all along."""
        self._over.set()
        self._thread.join()
        self._sample()
        used = sum(time - self._cpu_before.get(pid, 0.0) for pid, time in self._cpu.items())
        return ProcessUsage(
            peak_memory_bytes=self._peak, cpu_s=used, wall_s=_now() - self._began, processes=self._processes
        )

    def _watch(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self._sample()

    def _sample(self) -> None:
        tree = self._tree()
        self._peak = max(self._peak, sum(_memory(process) for process in tree))
        self._processes = max(self._processes, len(tree))
        self._cpu |= _cpu_times(tree)

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []


def pid_of_listener(port: int) -> int | None:
    """The process of this user that listens on a port of this machine; None when it cannot be told."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return connection.pid
    except psutil.Error:
        return None
    return None


def _memory(process: psutil.Process) -> int:
    try:
        found = process.memory_full_info()
        return int(getattr(found, "pss", found.rss))
    except psutil.Error:
        return 0


def _cpu_times(tree: list[psutil.Process]) -> dict[int, float]:
    found: dict[int, float] = {}
    for process in tree:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[process.pid] = times.user + times.system
    return found


def _now() -> float:
    import time

    return time.monotonic()
