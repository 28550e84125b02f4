"""A Redis server of the test's own, on a free port of the loopback interface."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path


class RedisProcess:
    """Started when it is made; keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def num_objects(self) -> int:
        return int(self.command("DBSIZE").strip(b":\r\n"))

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            ["redis-server", *options], cwd=self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        limit = time.monotonic() + 60
        while True:
            try:
                assert self.command("PING") == b"+PONG\r\n"
                return
            except OSError:
                assert time.monotonic() < limit, "redis-server does not start"
                time.sleep(0.02)

    def command(self, *words: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return connection.recv(1 << 20)

    def freeze(self) -> None:
        """SIGSTOP: it takes connections and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
