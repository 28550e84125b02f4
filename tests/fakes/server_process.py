"""A real ``sessile serve`` in a process group of its own, to be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
START_S = 240.0  # converting the embedded model and building kernels, on a busy machine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """One server on one data folder; ``kill`` and ``start`` again as often as you like, on the same ports."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``environment``: variables beside those of this process. ``tls``: how to ask a server with certificates."""
        self.data_dir = data_dir
        self.http_port, self.grpc_port = free_port(), free_port()
        self.flags = flags
        self.environment = dict(environment or {})
        self.tls = tls
        self.log = data_dir.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def grpc_target(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def engine_pid(self) -> int:
        """The child that runs the engine."""
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(part.endswith("engine.process") for part in child.cmdline()):
                    return int(child.pid)
        raise LookupError("the server has no engine")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process without waiting."""
        command = [
            sys.executable, "-m", "sessile.server.app", "serve",
            "--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port),
            "--data-dir", str(self.data_dir), *self.flags,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root"), **self.environment}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd="/"
            )

    def start(self) -> ServerProcess:
        """Start and wait until the model is loaded."""
        self.launch()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.tail()}")
            ready = f"{self.url}/ready"
            with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(ready, context=self.tls):
                return
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready after {START_S} s:\n{self.tail()}")

    def kill(self) -> None:
        """``kill -9`` of the server and its engine at once."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; returns the exit status."""
        assert self._process is not None
        return self._process.wait(timeout=60)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()
