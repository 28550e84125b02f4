"""Checks of the machine: processor, threads, memory, disk, ports."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ...sessions.errors import ConfigError
from ..address import address
from ..config import ServerConfig
from ..places import listen, prepare_data_dir
from ..rpc.rpc_server import SERVICE
from .finding import Finding, Health

_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16")
_FREE_DISK_BYTES = 2**30
_GIB = 2**30


def check_machine(config: ServerConfig) -> Iterator[Finding]:
    """Everything that needs no torch."""
    yield _cpu()
    yield _threads(config.engine.threads)
    yield _memory(config.engine.kv_memory_bytes)
    yield from _data_dir(config.server.data_dir)
    yield _port(config.server.host, config.http.port, "http")
    yield _port(config.server.host, config.grpc.port, "grpc")


def _cpu() -> Finding:
    name, flags = _cpu_of_linux()
    present = [feature for feature in _FEATURES if feature in flags]
    found = f"{name or 'unknown'}; {', '.join(present) or 'no vector features known'}"
    if "avx2" in flags and "avx512_bf16" not in flags:
        return Finding(
            topic="cpu",
            found=found,
            health=Health.WARNING,
            remedy="bfloat16 runs faster on a processor with AVX-512 BF16; nothing is wrong with the installation",
        )
    return Finding(topic="cpu", found=found)


def _cpu_of_linux() -> tuple[str, set[str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", set()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return values.get("model name", ""), set(values.get("flags", values.get("Features", "")).split())


def _threads(configured: int) -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or usable
    found = f"{usable} usable of {os.cpu_count()}, {physical} cores; the engine takes {configured or 'one a core'}"
    if configured > usable:
        return Finding(
            topic="threads", found=found, health=Health.WARNING, remedy=f"give --threads at most {usable}, or leave it"
        )
    return Finding(topic="threads", found=found)


def _memory(kv_bytes: int) -> Finding:
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    limit = _cgroup_limit()
    if limit is not None and limit < total:
        total, available = limit, min(available, limit)
    found = (
        f"{available / _GIB:.1f} GiB available of {total / _GIB:.1f} GiB; the KV pool takes {kv_bytes / _GIB:.2f} GiB"
    )
    if kv_bytes > available:
        return Finding(
            topic="memory", found=found, health=Health.BROKEN, remedy="give --kv-memory-bytes less, such as 512MiB"
        )
    if kv_bytes > available * 0.8:
        return Finding(topic="memory", found=found, health=Health.WARNING, remedy="leave room for the model's weights")
    return Finding(topic="memory", found=found)


def _cgroup_limit() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _data_dir(folder: Path) -> Iterator[Finding]:
    try:
        prepare_data_dir(folder)
    except ConfigError as error:
        yield Finding(topic="data folder", found=error.message, health=Health.BROKEN, remedy=error.remedy)
        return
    free = shutil.disk_usage(folder).free
    found = f"{folder}: can be written, {free / _GIB:.1f} GiB free"
    if free < _FREE_DISK_BYTES:
        yield Finding(topic="data folder", found=found, health=Health.WARNING, remedy="free some space on this disk")
    else:
        yield Finding(topic="data folder", found=found)


def _port(host: str, port: int, kind: str) -> Finding:
    topic = f"{kind} port"
    if port == 0:
        return Finding(topic=topic, found="a free one is taken at the start")
    try:
        with closing(listen(host, port, kind)):
            return Finding(topic=topic, found=f"{host}:{port} is free")
    except ConfigError as error:
        if _RUNS_THERE[kind](address(host, port)):
            return Finding(
                topic=topic,
                found=f"a Sessile server runs on {host}:{port} already",
                health=Health.WARNING,
                remedy=error.remedy,
            )
        return Finding(topic=topic, found=error.message, health=Health.BROKEN, remedy=error.remedy)


def _is_sessile_over_http(target: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{target}/openapi.json", timeout=1) as response:
            return b'"title":"Sessile"' in response.read(4096)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def _is_sessile_over_grpc(target: str) -> bool:
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    with grpc.insecure_channel(target) as channel:
        try:
            health_pb2_grpc.HealthStub(channel).Check(request, timeout=1)
        except grpc.RpcError:
            return False
    return True


_RUNS_THERE = {"http": _is_sessile_over_http, "grpc": _is_sessile_over_grpc}
