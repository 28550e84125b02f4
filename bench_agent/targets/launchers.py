"""The servers that the harness can start: which program, with which flags, and what to install when it is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import TargetError
from .server_process import LaunchPlan, free_port

_OWN = ("--host", "--port", "--model")


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What the user wants served. ``python``: the interpreter of the server's own environment."""

    model: str | None
    flags: tuple[str, ...]
    wire: str
    folder: Path
    python: str | None = None
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Launcher:
    """``plan`` makes the command; ``install``: the line that brings the program; ``version``: of what is installed."""

    name: str
    dialect: str
    install: str
    plan: Callable[[ServeRequest], LaunchPlan]
    version: Callable[[ServeRequest], str | None]


def launcher_named(name: str) -> Launcher:
    """Raises TargetError listing what there is."""
    for known in LAUNCHERS:
        if known.name == name:
            return known
    raise TargetError(
        f"{name!r} is no server that can be started here",
        remedy=f"there are: {', '.join(known.name for known in LAUNCHERS)}; or start it yourself and pass --target",
    )


def _sessile(request: ServeRequest) -> LaunchPlan:
    _refuse_own(request, "--http-port", "--grpc-port", "--model")
    python = _interpreter(request)
    if not _has_module(python, "sessile.server.app"):
        raise TargetError("Sessile's server is not installed", remedy=_SESSILE_INSTALL)
    http, grpc = free_port(), free_port()
    data = request.data_dir or request.folder / "server-data"
    command = [python, "-m", "sessile.server.app", "serve"]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--data-dir", str(data)]
    command += ["--model", request.model] if request.model else []
    address = f"grpc://127.0.0.1:{grpc}" if request.wire == "grpc" else f"http://127.0.0.1:{http}"
    return LaunchPlan(
        "sessile",
        (*command, *request.flags),
        f"http://127.0.0.1:{http}/ready",
        address,
        _log(request, "sessile"),
        install=_SESSILE_INSTALL,
    )


def _llama_server(request: ServeRequest) -> LaunchPlan:
    _refuse_own(request, *_OWN, "-m")
    program = shutil.which("llama-server")
    if program is None:
        raise TargetError("llama-server is not installed", remedy=_LLAMA_SERVER_INSTALL)
    return _on_a_port(request, "llama-server", [program], "/health")


def _llama_cpp_python(request: ServeRequest) -> LaunchPlan:
    _refuse_own(request, *_OWN)
    python = _interpreter(request)
    if not _has_module(python, "llama_cpp.server"):
        raise TargetError("llama-cpp-python's server is not installed", remedy=_LLAMA_CPP_PYTHON_INSTALL)
    command = [python, "-m", "llama_cpp.server", "--interrupt_requests", "False"]
    plan = _on_a_port(request, "llama-cpp-python", command, "/v1/models")
    return replace(plan, install=_LLAMA_CPP_PYTHON_INSTALL)


def _vllm(request: ServeRequest) -> LaunchPlan:
    _refuse_own(request, *_OWN)
    python = _interpreter(request)
    if not _has_module(python, "vllm"):
        raise TargetError("vLLM is not installed", remedy=_VLLM_INSTALL)
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--enable-prompt-tokens-details"]
    plan = _on_a_port(request, "vllm", command, "/health")
    return replace(plan, start_timeout_s=1800.0, install=_VLLM_INSTALL)


def _on_a_port(request: ServeRequest, name: str, command: Sequence[str], ready: str) -> LaunchPlan:
    """A program that takes its place and its model as the flags of ``_OWN`` and answers 200 at the path ``ready``."""
    port = free_port()
    own = ("--host", "127.0.0.1", "--port", str(port), "--model", _needed(request, name))
    url = f"http://127.0.0.1:{port}"
    return LaunchPlan(name, (*command, *own, *request.flags), url + ready, url, _log(request, name))


def _refuse_own(request: ServeRequest, *owned: str) -> None:
    """Flags that the harness sets: a second one would have it wait for a server that listens elsewhere, or record
    another model than was served."""
    for flag in request.flags:
        if flag.partition("=")[0] in owned:
            raise TargetError(
                f"{flag} is set by the harness, which starts the server on a free port of its own",
                field="serve_flags",
                remedy="leave it out (a model is named with --model), or start the server yourself and pass --target",
            )


def _interpreter(request: ServeRequest) -> str:
    python = shutil.which(request.python or sys.executable)
    if python is None:
        raise TargetError(
            f"there is no program {request.python}", field="serve_python", remedy="pass the path of an interpreter"
        )
    return python


def _log(request: ServeRequest, name: str) -> Path:
    return request.folder / f"{name}.log"


def _needed(request: ServeRequest, name: str) -> str:
    if request.model is None:
        raise TargetError(f"{name} has no model of its own", remedy="pass --model PATH_OR_NAME")
    return request.model


def _has_module(python: str, module: str) -> bool:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def _package_version(package: str) -> Callable[[ServeRequest], str | None]:
    def version(request: ServeRequest) -> str | None:
        probe = f"import importlib.metadata as m; print(m.version({package!r}))"
        return _first_line([request.python or sys.executable, "-c", probe])

    return version


def _llama_server_version(_: ServeRequest) -> str | None:
    program = shutil.which("llama-server")
    return None if program is None else _first_line([program, "--version"])


def _first_line(command: Sequence[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


_SESSILE_INSTALL = "pip install 'sessile[server]'"
_LLAMA_SERVER_INSTALL = "build llama.cpp and put llama-server on the PATH, or use --serve llama-cpp-python"
_LLAMA_CPP_PYTHON_INSTALL = "pip install 'llama-cpp-python[server]', in an environment of its own; then --serve-python"
_VLLM_INSTALL = "pip install vllm, in an environment of its own; then --serve-python /path/to/its/bin/python"

LAUNCHERS = (
    Launcher("sessile", "sessile", _SESSILE_INSTALL, _sessile, _package_version("sessile")),
    Launcher("llama-server", "llama-server", _LLAMA_SERVER_INSTALL, _llama_server, _llama_server_version),
    Launcher(
        "llama-cpp-python",
        "llama-cpp-python",
        _LLAMA_CPP_PYTHON_INSTALL,
        _llama_cpp_python,
        _package_version("llama-cpp-python"),
    ),
    Launcher("vllm", "vllm", _VLLM_INSTALL, _vllm, _package_version("vllm")),
)
