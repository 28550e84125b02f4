"""``make demo``: a real agent conversation on the embedded model, with forks, a rollback, and two murders.

Starts a server of its own (free ports, a temporary data folder), talks to it through the SDK as an agent does, and
shows each turn as it ends: where its prompt's tokens came from, how long the first token took, how fast the others
came.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ..server.client import AsyncSession, AsyncSessionClient, AsyncTurn, RetryPolicy, SamplingParams, TurnUsage

REPOSITORY = Path(__file__).resolve().parent.parent
FILES_READ = (
    ("sessions/cache/block_pool.py", 12, 34),
    ("sessions/session.py", 1, 24),
    ("sessions/cache/radix_tree.py", 1, 26),
)
SYSTEM = """You are a coding agent that works in a repository, step by step. Answer with one short thought.
Tools:
- read_file(path, start, end): read lines of a file of the repository
- grep(pattern, path): search the repository with a regular expression
- run(command, timeout_s): run a shell command in the sandbox and return its output
- finish(summary): end the task with a short summary
House style, by example:
"""
ANSWER = SamplingParams(temperature=0.0, max_tokens=48)
PATIENT = RetryPolicy(max_attempts=200, longest_delay_s=1.0)
READY_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class TurnRow:
    """What one turn showed."""

    label: str
    usage: TurnUsage
    ttft_s: float
    decode_s: float
    text: str

    @property
    def tokens_per_s(self) -> float:
        return (self.usage.completion_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


class DemoServer:
    """``sessile serve`` in a process group of its own."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._http_port, self.grpc_port = _free_port(), _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start and wait until it is ready; returns the seconds that took."""
        began = time.monotonic()
        command = [
            sys.executable, "-m", "sessile.server.app", "serve",
            "--http-port", str(self._http_port), "--grpc-port", str(self.grpc_port),
            "--data-dir", str(self._data_dir), "--log-level", "error",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, start_new_session=True)
        while not self._is_ready():
            if self._process.poll() is not None:
                raise SystemExit("the server did not start; its reason stands above")
            if time.monotonic() - began > READY_TIMEOUT_S:
                raise SystemExit(f"the server is not ready after {READY_TIMEOUT_S:.0f} s")
            time.sleep(0.05)
        return time.monotonic() - began

    def kill_engine(self) -> int:
        """``kill -9`` of the engine alone; returns its process id."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children(recursive=True):
            if any(part.endswith("engine.process") for part in child.cmdline()):
                child.kill()
                return int(child.pid)
        raise SystemExit("the server has no engine")

    def kill(self) -> int:
        """``kill -9`` of the server and its engine; returns the server's process id."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return self._process.pid

    def stop(self) -> None:
        """Ask it to leave, as an operator would."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=60)

    def _is_ready(self) -> bool:
        address = f"http://127.0.0.1:{self._http_port}/ready"
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(address):
            return True
        return False


class Demo:
    """The conversation and the table that grows with it."""

    def __init__(self, console: Console, server: DemoServer) -> None:
        self._console = console
        self._server = server
        self.rows: list[TurnRow] = []

    async def play(self, client: AsyncSessionClient) -> None:
        """All of it."""
        with Live(console=self._console, refresh_per_second=8, get_renderable=self._table):
            session = await client.open(system=SYSTEM + _lines("sessions/errors.py", 23, 52))
            await self._turn("1 the task (cold)", session.generate(messages=_task(), sampling=ANSWER))
            for number, (path, start, stop) in enumerate(FILES_READ, start=2):
                result = session.tool_result(
                    f"call_{number}", _lines(path, start, stop), name="read_file", sampling=ANSWER
                )
                await self._turn(f"{number} tool result: {Path(path).name}", result)
            await self._sub_agents(session)
            await self._rollback(session)
            await self._engine_dies(session)
            await self._server_dies(client, session)

    async def _sub_agents(self, session: AsyncSession) -> None:
        self._note("two sub-agents fork the session: all of its KV is shared")
        tasks = {"tests": "Name one test that is missing.", "docs": "Write one line of documentation."}
        forks = [await session.fork() for _ in tasks]
        async with asyncio.TaskGroup() as group:
            for fork, (name, text) in zip(forks, tasks.items(), strict=True):
                turn = fork.generate(messages=text, sampling=ANSWER)
                group.create_task(self._turn(f"5 sub-agent: {name}", turn))
        for fork in forks:
            await fork.close()

    async def _rollback(self, session: AsyncSession) -> None:
        turn = session.generate(messages="Rewrite everything in another language.", sampling=ANSWER)
        await self._turn("6 a turn to regret", turn)
        before = session.view.num_tokens
        await session.rollback(turn=4)
        self._note(f"rolled back to turn 4: {before - session.view.num_tokens} tokens dropped from the session")
        turn = session.generate(messages="What did the three files have in common?", sampling=ANSWER)
        await self._turn("6 again, otherwise", turn)

    async def _engine_dies(self, session: AsyncSession) -> None:
        question = "Which of them would you read again?"
        turn = session.generate(messages=question, sampling=ANSWER)

        def kill() -> None:
            self._note(f"kill -9 of the engine (process {self._server.kill_engine()}) in the middle of a turn")

        await self._turn("7 the engine dies in it", turn, after_first_token=kill)
        undisturbed = await session.fork(turn=turn.finished.turn - 1)
        again = undisturbed.generate(messages=question, sampling=ANSWER)
        await again.wait()
        await undisturbed.close()
        if turn.token_ids != again.token_ids:
            raise SystemExit("the answer is not what it would have been without the kill")
        self._note(
            "a new engine went on with the turn where its stream broke: "
            f"the same {len(turn.token_ids)} tokens as on a fork without a kill"
        )

    async def _server_dies(self, client: AsyncSessionClient, session: AsyncSession) -> None:
        version, tokens = session.version, session.view.num_tokens
        self._note(f"kill -9 of the whole server (process {self._server.kill()})")
        seconds = await asyncio.to_thread(self._server.start)
        again = await client.session(session.session_id)
        lost = tokens - again.view.num_tokens
        if lost or again.version != version:
            raise SystemExit("the session is not what it was before the kill")
        self._note(f"server back after {seconds:.1f} s: the session has its {tokens} tokens, as before")
        turn = again.generate(messages="Finish with a summary.", sampling=ANSWER)
        await self._turn("8 after the restart", turn)

    async def _turn(self, label: str, turn: AsyncTurn, after_first_token: Callable[[], None] | None = None) -> None:
        began = time.monotonic()
        first = None
        async with turn:
            async for _ in turn:
                if first is None:
                    first = time.monotonic()
                    if after_first_token is not None:
                        after_first_token()
        end = time.monotonic()
        first = end if first is None else first
        self.rows.append(TurnRow(label, turn.finished.usage, first - began, end - first, turn.text))

    def _note(self, text: str) -> None:
        self._console.print(f"[bold yellow]»[/] {text}")

    def _table(self) -> Table:
        table = Table(title="turns", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("turn", no_wrap=True, min_width=24, max_width=30)
        for column, width in (("prompt", 6), ("from cache", 10), ("computed", 8), ("TTFT ms", 7), ("tok/s", 5)):
            table.add_column(column, justify="right", no_wrap=True, min_width=width)
        table.add_column("answer", no_wrap=True)
        for row in self.rows:
            sources = row.usage.tokens_by_source
            answer = " ".join(row.text.split())
            table.add_row(
                row.label, str(row.usage.prompt_tokens), f"{sources.cached} ({sources.cached / sources.total:.0%})",
                str(sources.computed), f"{row.ttft_s * 1e3:.0f}", f"{row.tokens_per_s:.0f}",
                answer[:38] + "…" if len(answer) > 39 else answer,
            )  # fmt: skip
        return table


def _task() -> str:
    return "Explain what the files that I show you have in common. Start with read_file."


def _lines(path: str, start: int, stop: int) -> str:
    lines = (REPOSITORY / path).read_text().splitlines()[start - 1 : stop]
    return f"$ sed -n {start},{stop}p {path}\n" + "\n".join(lines)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _summary(demo: Demo, start_s: float) -> Iterator[str]:
    first = demo.rows[0]
    warm = statistics.median(row.ttft_s for row in demo.rows[1:])
    prompt = sum(row.usage.prompt_tokens for row in demo.rows)
    cached = sum(row.usage.tokens_by_source.cached for row in demo.rows)
    rate = statistics.median(row.tokens_per_s for row in demo.rows)
    yield f"server ready in {start_s:.1f} s"
    cold = f"{first.ttft_s * 1e3:.0f} ms cold ({first.usage.prompt_tokens} tokens)"
    yield f"time to the first token: {cold}, {warm * 1e3:.0f} ms afterwards (median of {len(demo.rows) - 1} turns)"
    yield f"prompt tokens: {prompt}, of which {cached} ({cached / prompt:.0%}) came from the cache"
    yield f"tokens per second while an answer is written: {rate:.0f} (median of all turns)"
    yield "killed: the engine in mid-turn, then the whole server; lost: nothing"
    yield 'the same with your agent: make serve, then the README\'s "Use it from an agent"'


async def _run(console: Console) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-demo-") as folder:
        server = DemoServer(Path(folder))
        console.print(
            "[bold]Sessile demo[/]: starting the server on its embedded model, SmolLM2 with 135 million parameters …"
        )
        console.print(
            "(the first start on a machine fetches it and compiles kernels: half a minute or more)", style="dim"
        )
        demo = Demo(console, server)
        try:
            start_s = await asyncio.to_thread(server.start)
            async with AsyncSessionClient(f"127.0.0.1:{server.grpc_port}", retry=PATIENT) as client:
                await demo.play(client)
        finally:
            server.stop()
        console.print()
        for line in _summary(demo, start_s):
            console.print(f"[bold green]•[/] {line}")


def main() -> None:
    """Run the demo."""
    asyncio.run(_run(Console(width=None if sys.stdout.isatty() else 120)))


if __name__ == "__main__":
    main()
