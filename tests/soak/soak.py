"""Soak: many agents at once on one server, over all APIs, with small tiers, for as long as wanted.

``python tests/soak/soak.py --minutes 30 --sessions 200`` (``make soak``) prints a report; ``test_soak.py`` runs a short
form. Agents open sessions, run turns, fork, roll back, hint, suspend, resume, cancel in mid-stream, drop connections
and close, over gRPC and HTTP. Each keeps its own account of what was acknowledged; at the end the accounts are compared
with the store, and the server's memory, threads, files and blocks with what they were after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import psutil
from served_llama import make_served_llama
from server_process import ServerProcess

from sessile.server.client import AsyncSession, AsyncSessionClient, Retain, RetryPolicy, SamplingParams, ToolWait
from sessile.sessions.errors import CapacityError, ContextOverflow, SessileError
from sessile.sessions.store import SessionStore

# A pool, a host tier and a disk tier that a few dozen sessions fill.
SMALL = (
    "--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "6MiB", "--host-memory-bytes", "3MiB",
    "--disk-quota-bytes", "24MiB", "--reuse-index-tokens", "100000", "--speculation-memory-bytes", "2MiB",
    "--log-level", "error",
)  # fmt: skip
WORDS = (
    "the", "tests", "pass", "but", "this", "one", "does", "not", "so", "read", "file", "again", "run", "with", "more",
)  # fmt: skip
HANGS_AFTER_S = 600.0  # an action of several turns, on a machine that others use as well
MOST_GROWTH = 1.05
FILLING_S = 600.0  # what is remembered of the last turns and sessions has bounds that a short run does not reach,
FILLING_MIB = 32.0  # so that memory may grow by so much in its second half


@dataclasses.dataclass
class Account:
    """What one session was told: its version and the sampled tokens of its turns, in order."""

    session_id: str
    version: int
    num_tokens: int
    answers: list[tuple[int, ...]]


@dataclasses.dataclass
class Usage:
    """Of a server's processes together."""

    rss_mib: float
    threads: int
    files: int
    each_mib: dict[str, float] = dataclasses.field(default_factory=dict)  # by the process's program


@dataclasses.dataclass
class Report:
    """What happened."""

    seconds: float = 0.0
    actions: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    errors: list[str] = dataclasses.field(default_factory=list)
    warm: Usage | None = None
    end: Usage | None = None
    peak_rss_mib: float = 0.0
    lost: list[str] = dataclasses.field(default_factory=list)
    sessions_checked: int = 0
    tokens_checked: int = 0
    blocks_in_use: float = -1.0
    turns_in_hand: float = -1.0

    def complaints(self) -> list[str]:
        """What should not be; empty for a good run."""
        found = [*self.errors[:20], *self.lost[:20]]
        if self.warm is None or self.end is None:
            return [*found, "the run ended before it was measured"]
        allowed = self.warm.rss_mib * MOST_GROWTH + (FILLING_MIB if self.seconds < FILLING_S else 0.0)
        if self.end.rss_mib > allowed:
            found.append(f"memory grew from {self.warm.rss_mib:.0f} to {self.end.rss_mib:.0f} MiB")
        if self.end.threads > self.warm.threads + 2:
            found.append(f"threads grew from {self.warm.threads} to {self.end.threads}")
        if self.end.files > self.warm.files + 8:
            found.append(f"open files grew from {self.warm.files} to {self.end.files}")
        if self.blocks_in_use:
            found.append(f"{self.blocks_in_use:.0f} blocks are in use although nothing runs")
        if self.turns_in_hand:
            found.append(f"{self.turns_in_hand:.0f} turns are in hand although nothing runs")
        return found

    def lines(self) -> list[str]:
        """The report as people read it."""
        warm, end = self.warm, self.end
        lines = [
            f"{self.seconds / 60:.1f} minutes, {sum(self.actions.values())} actions: "
            + ", ".join(f"{name} {count}" for name, count in sorted(self.actions.items())),
            "refused, as they should be: "
            + (", ".join(f"{n} {c}" for n, c in sorted(self.refusals.items())) or "none"),
            f"errors: {len(self.errors)}",
            f"checked against the store: {self.sessions_checked} sessions, {self.tokens_checked} sampled tokens; "
            f"lost: {len(self.lost)}",
        ]
        if warm is not None and end is not None:
            lines.append(
                f"memory {warm.rss_mib:.0f} MiB after the warm-up, {end.rss_mib:.0f} at the end, "
                f"{self.peak_rss_mib:.0f} at most"
            )
            lines.append(f"threads {warm.threads} and {end.threads}; files {warm.files} and {end.files}")
        lines.append(f"blocks in use at rest: {self.blocks_in_use:.0f}; turns in hand: {self.turns_in_hand:.0f}")
        return lines

    def as_json(self) -> dict[str, object]:
        """For other programs to read."""
        counts = {"actions": dict(self.actions), "refusals": dict(self.refusals)}
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            **counts,
            "warm": self.warm and dataclasses.asdict(self.warm),
            "end": self.end and dataclasses.asdict(self.end),
        }


class Agent:
    """One client: acts at random until the end, and keeps account."""

    def __init__(self, soak: Soak, number: int) -> None:
        self._soak = soak
        self._random = random.Random(f"{soak.seed}/{number}")
        self._system = f"You are agent {number % 8}. " + self._text(30)
        self._sessions: list[AsyncSession] = []
        self.accounts: dict[str, Account] = {}

    async def run(self) -> None:
        while not self._soak.is_over:
            action = self._random.choices(
                (self._open, self._turn, self._turn, self._turn, self._tool_turn, self._fork, self._rollback,
                 self._cancel, self._hint, self._suspend, self._close, self._chat, self._drop, self._messages),
            )[0]  # fmt: skip
            await self._soak.watched(action)
            await asyncio.sleep(self._random.uniform(0.0, self._soak.pause_s))

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(WORDS, k=words))

    def _sampling(self, most: int = 24) -> SamplingParams:
        return SamplingParams(
            temperature=self._random.choice((0.0, 0.8)), max_tokens=self._random.randint(1, most), ignore_eos=True
        )

    async def _some(self) -> AsyncSession:
        if not self._sessions:
            await self._open()
        return self._random.choice(self._sessions)

    def _note(self, session: AsyncSession, answer: tuple[int, ...] | None = None) -> None:
        account = self.accounts.setdefault(session.session_id, Account(session.session_id, 0, 0, []))
        account.version, account.num_tokens = session.version, session.view.num_tokens
        if answer is not None:
            account.answers.append(answer)

    async def _open(self) -> None:
        if len(self._sessions) >= 4:
            await self._close()
        session = await self._soak.client.open(system=self._system)
        self._sessions.append(session)
        self._note(session)

    async def _turn(self) -> None:
        session = await self._some()
        turn = session.generate(messages=self._text(self._random.randint(1, 40)), sampling=self._sampling())
        await turn.wait()
        self._note(session, turn.token_ids)

    async def _tool_turn(self) -> None:
        session = await self._some()
        if session.version < 2:
            return
        turn = session.tool_result("call_1", self._text(20), name="run", sampling=self._sampling())
        await turn.wait()
        self._note(session, turn.token_ids)

    async def _fork(self) -> None:
        if len(self._sessions) >= 4:
            await self._close()
        source = await self._some()
        fork = await source.fork()
        self._sessions.append(fork)
        self._note(fork)
        self.accounts[fork.session_id].answers = list(self.accounts[source.session_id].answers)

    async def _rollback(self) -> None:
        session = await self._some()
        account = self.accounts[session.session_id]
        turns = session.view.num_turns
        if turns < 2:
            return
        to = self._random.randint(1, turns - 1)
        await session.rollback(turn=to)
        account.answers = account.answers[: len(account.answers) - (turns - to)]
        self._note(session)

    async def _cancel(self) -> None:
        session = await self._some()
        turn = session.generate(messages=self._text(60), sampling=SamplingParams(max_tokens=400, ignore_eos=True))
        async for _ in turn:
            break
        await turn.aclose()
        await session.refresh()
        self._note(session)

    async def _hint(self) -> None:
        session = await self._some()
        hint = self._random.choice(
            (Retain(ttl_s=2.0, priority=1), Retain(ttl_s=1.0, hard=True), ToolWait(tool="run", p50_s=0.1, p95_s=1.0))
        )
        await session.hint(hint)
        self._note(session)

    async def _suspend(self) -> None:
        session = await self._some()
        await session.suspend()
        self._note(session)
        if self._random.random() < 0.7:
            await session.resume()
            self._note(session)

    async def _close(self) -> None:
        if not self._sessions:
            return
        session = self._sessions.pop(self._random.randrange(len(self._sessions)))
        await session.close()
        del self.accounts[session.session_id]

    async def _chat(self) -> None:
        messages = [{"role": "system", "content": self._system}]
        for _ in range(self._random.randint(1, 4)):
            messages.append({"role": "user", "content": self._text(10)})
            answer = await self._post("/v1/chat/completions", {"messages": messages, "max_tokens": 8})
            messages.append(answer["choices"][0]["message"])
            usage = answer["usage"]
            if sum(usage["prompt_tokens_by_source"].values()) != usage["prompt_tokens"]:
                self._soak.report.errors.append(f"usage does not add up: {usage}")

    async def _messages(self) -> None:
        body = {"model": "default", "max_tokens": 8, "messages": [{"role": "user", "content": self._text(12)}]}
        await self._post("/v1/messages", body)

    async def _drop(self) -> None:
        body = {"messages": [{"role": "user", "content": self._text(80)}], "max_tokens": 400, "stream": True}
        async with self._soak.http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code == 200:
                async for _ in response.aiter_bytes():
                    return
            else:
                await response.aread()
                self._refused(response)

    async def _post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        response = await self._soak.http.post(path, json=body)
        self._refused(response)
        return response.json()

    def _refused(self, response: httpx.Response) -> None:
        if response.status_code in (429, 503):
            raise CapacityError("refused")
        if response.status_code != 200:
            raise AssertionError(f"{response.status_code}: {response.text[:300]}")


class Soak:
    """One run against one server."""

    def __init__(self, server: ServerProcess, *, seconds: float, sessions: int, seed: int) -> None:
        self.seed = seed
        self.report = Report()
        self.pause_s = 0.02 * sessions / 10
        self._server = server
        self._sessions = sessions
        self._seconds = seconds
        self._end = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    async def run(self, progress: Callable[[str], None]) -> Report:
        """Everything but the comparison with the store."""
        began = time.monotonic()
        self._end = began + self._seconds
        limits = httpx.Limits(max_connections=200)
        self.client = AsyncSessionClient(self._server.grpc_target, retry=RetryPolicy(max_attempts=50))
        self.http = httpx.AsyncClient(base_url=self._server.url, timeout=HANGS_AFTER_S, limits=limits)
        async with self.client, self.http:
            agents = [Agent(self, number) for number in range(self._sessions // 4)]
            tasks = [asyncio.create_task(agent.run()) for agent in agents]
            tasks.append(asyncio.create_task(self._measure(began, progress)))
            await asyncio.gather(*tasks)
            await self._rest(agents)
        self.accounts = [account for agent in agents for account in agent.accounts.values()]
        self.report.seconds = time.monotonic() - began
        return self.report

    async def watched(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do it and count how it ended. What a client must expect under load is a refusal, all else an error."""
        name = action.__name__.strip("_")
        try:
            await asyncio.wait_for(action(), HANGS_AFTER_S)
            self.report.actions[name] += 1
        except (CapacityError, ContextOverflow) as refused:
            self.report.refusals[f"{name}: {type(refused).__name__}"] += 1
        except TimeoutError:
            self.report.errors.append(f"{name}: no end after {HANGS_AFTER_S:.0f} s")
        except (SessileError, AssertionError, httpx.HTTPError) as error:
            self.report.errors.append(f"{name}: {type(error).__name__}: {error}")

    async def _measure(self, began: float, progress: Callable[[str], None]) -> None:
        warm_at = began + self._seconds / 2
        while not self.is_over:
            await asyncio.sleep(min(5.0, self._seconds / 20))
            now = self._usage()
            self.report.peak_rss_mib = max(self.report.peak_rss_mib, now.rss_mib)
            if self.report.warm is None and time.monotonic() >= warm_at:
                self.report.warm = now
            done = (time.monotonic() - began) / self._seconds
            progress(
                f"{min(done, 1.0):4.0%}  {sum(self.report.actions.values())} actions, "
                f"{len(self.report.errors)} errors, {now.rss_mib:.0f} MiB "
                f"({', '.join(f'{name} {mib:.0f}' for name, mib in now.each_mib.items())})"
            )

    def _usage(self) -> Usage:
        front = psutil.Process(self._server.pid)
        found = [front, *front.children(recursive=True)]
        usage = Usage(0.0, 0, 0)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                rss_mib = process.memory_info().rss / 2**20
                usage.rss_mib += rss_mib
                usage.each_mib[program_of(process)] = rss_mib
                usage.threads += process.num_threads()
                usage.files += process.num_fds()
        return usage

    async def _rest(self, agents: list[Agent]) -> None:
        """Let everything end, and see what is still held. Pins of the last hints run out first."""
        self.report.end = self._usage()
        for _ in range(100):
            values = await self._metrics()
            self.report.blocks_in_use = values['sessile_kv_blocks{state="used"}']
            self.report.turns_in_hand = sum(
                value for name, value in values.items() if name.startswith("sessile_engine_turns{")
            )
            if not self.report.blocks_in_use and not self.report.turns_in_hand:
                return
            await asyncio.sleep(0.2)

    async def _metrics(self) -> dict[str, float]:
        text = (await self.http.get("/metrics")).text
        samples = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    async def compare(self, data_dir: Path) -> None:
        """Every acknowledged token is in the store of the stopped server."""
        store = SessionStore(data_dir)
        try:
            for account in self.accounts:
                session = await store.session(account.session_id)
                if session is None or session.place.num_tokens != account.num_tokens:
                    found = "nothing" if session is None else f"{session.place.num_tokens} tokens"
                    self.report.lost.append(
                        f"{account.session_id}: {account.num_tokens} tokens acknowledged, {found} kept"
                    )
                    continue
                kept = (await store.log(session.place)).token_ids()
                self._find(account, kept)
                self.report.sessions_checked += 1
        finally:
            store.close()

    def _find(self, account: Account, kept: list[int]) -> None:
        place = 0
        for answer in account.answers:
            while tuple(kept[place : place + len(answer)]) != answer:
                place += 1
                if place > len(kept):
                    self.report.lost.append(f"{account.session_id}: an acknowledged answer of {len(answer)} tokens")
                    return
            place += len(answer)
            self.report.tokens_checked += len(answer)


def program_of(process: psutil.Process) -> str:
    """The module that a process of the server runs."""
    modules = [part.rpartition("sessile.")[2] for part in process.cmdline() if "sessile." in part]
    return modules[0] if modules else process.name()


def soak(seconds: float, sessions: int, seed: int, progress: Callable[[str], None]) -> Report:
    """Start a server with small tiers on a tiny model, wear it, stop it, and compare."""
    with tempfile.TemporaryDirectory(prefix="sessile-soak-") as folder:
        model = make_served_llama(Path(folder) / "model")
        data_dir = Path(folder) / "data"
        with ServerProcess(data_dir, "--model", str(model), *SMALL) as server:
            run = Soak(server, seconds=seconds, sessions=sessions, seed=seed)
            asyncio.run(run.run(progress))
        asyncio.run(run.compare(data_dir))
        return run.report


def main() -> int:
    """Entry point of ``make soak``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--sessions", type=int, default=200, help="at a time, at most; four an agent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the report there too")
    given = parser.parse_args()
    report = soak(given.minutes * 60, given.sessions, given.seed, lambda line: print(line, file=sys.stderr, flush=True))
    complaints = report.complaints()
    print("\n".join(report.lines()))
    print("\n".join(f"WRONG: {complaint}" for complaint in complaints) or "nothing is wrong")
    if given.json:
        Path(given.json).write_text(json.dumps(report.as_json(), indent=1))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
