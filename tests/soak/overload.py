"""Overload: four times as many turns as the server can do, and what becomes of them.

``python tests/soak/overload.py --seconds 120`` (``make overload``) prints a report; ``test_overload.py`` runs a short
form. First the best goodput is measured (as many clients as there are places, each with one turn at a time), then turns
arrive at four times that rate whatever becomes of them, then they stop, and turns are tried until one is as quick as it
was before.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from served_llama import make_served_llama
from server_process import ServerProcess

PLACES = 8
MAX_QUEUE_S = 3.0
FLAGS = (
    "--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "64MiB", "--max-sequences", str(PLACES),
    "--max-queue-s", str(MAX_QUEUE_S), "--speculation", "off", "--log-level", "error",
)  # fmt: skip
FACTOR = 4
TOKENS = 150  # of an answer: so many that making the requests is little work beside answering them
SOME = 20  # refusals
LEAST_GOODPUT = 0.8
LONGEST_REFUSAL_S = 1.0
LONGEST_RECOVERY_S = 5.0


@dataclasses.dataclass
class Report:
    """What happened. Seconds, and turns a second."""

    best: float = 0.0
    calm_s: list[float] = dataclasses.field(default_factory=list)  # turns when each client waits for its own
    offered: float = 0.0
    admitted_s: list[float] = dataclasses.field(default_factory=list)
    refused_s: list[float] = dataclasses.field(default_factory=list)
    without_retry_time: int = 0
    other: list[str] = dataclasses.field(default_factory=list)  # answers that were neither
    goodput: float = 0.0
    answers_again: bool = False  # after the overload
    recovery_s: float = -1.0

    @property
    def share(self) -> float:
        """Goodput in overload as a part of the best."""
        return self.goodput / self.best

    @property
    def bound_s(self) -> float:
        """What an admitted turn may take: the longest wait, and twice the slowest calm turn (predictions are off)."""
        return MAX_QUEUE_S + 2 * max(self.calm_s)

    def complaints(self) -> list[str]:
        """What should not be; empty for a good run."""
        found = list(self.other[:10])
        if self.without_retry_time:
            found.append(f"{self.without_retry_time} refusals say not when to try again")
        if not self.refused_s:
            return [*found, "nothing was refused: that was no overload"]
        if self.share < LEAST_GOODPUT:
            found.append(f"goodput fell to {self.share:.0%} of the best")
        if percentile(self.admitted_s, 99) > self.bound_s:
            found.append(
                f"admitted turns took {percentile(self.admitted_s, 99):.1f} s, {self.bound_s:.1f} s is the bound"
            )
        if percentile(self.refused_s, 99) > LONGEST_REFUSAL_S:
            found.append(f"refusals took {percentile(self.refused_s, 99):.2f} s")
        if not 0 <= self.recovery_s <= LONGEST_RECOVERY_S:
            found.append(f"it took {self.recovery_s:.1f} s until a turn was as quick as before")
        return found

    def lines(self) -> list[str]:
        """The report as people read it."""
        return [
            f"best: {self.best:.1f} turns/s, a turn takes {statistics.median(self.calm_s):.2f} s (p50)",
            f"offered: {self.offered:.1f} turns/s; answered {self.goodput:.1f} a second, {self.share:.0%} of the best",
            f"admitted: {len(self.admitted_s)}, p50 {percentile(self.admitted_s, 50):.2f} s, "
            f"p99 {percentile(self.admitted_s, 99):.2f} s (bound {self.bound_s:.1f} s)",
            f"refused: {len(self.refused_s)}, p50 {1000 * percentile(self.refused_s, 50):.0f} ms, "
            f"p99 {1000 * percentile(self.refused_s, 99):.0f} ms; without a retry time: {self.without_retry_time}",
            f"recovered after {self.recovery_s:.1f} s",
        ]


def percentile(values: list[float], percent: int) -> float:
    """The value that ``percent`` of 100 do not exceed; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


class Overload:
    """One run against one server."""

    def __init__(self, server: ServerProcess, num_tokens: int) -> None:
        self._server = server
        self._num_tokens = num_tokens
        self._number = 0
        self.report = Report()

    async def run(self, calm_s: float, overload_s: float) -> Report:
        """All three parts."""
        limits = httpx.Limits(max_connections=2000, max_keepalive_connections=200)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=120, limits=limits) as self._http:
            await asyncio.gather(*(self._turn() for _ in range(PLACES)))  # everything is loaded and compiled
            await self._calm(calm_s)
            stopped = await self._overload(overload_s)
            await self._recover(stopped)
        return self.report

    async def _turn(self) -> tuple[httpx.Response, float]:
        self._number += 1
        body = {
            "messages": [{"role": "user", "content": f"turn {self._number}"}],
            "max_tokens": self._num_tokens, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        began = time.monotonic()
        answer = await self._http.post("/v1/chat/completions", json=body)
        return answer, time.monotonic() - began

    async def _calm(self, seconds: float) -> None:
        end = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < end:
                answer, took_s = await self._turn()
                assert answer.status_code == 200, answer.text
                self.report.calm_s.append(took_s)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(PLACES)))
        self.report.best = len(self.report.calm_s) / (time.monotonic() - began)

    async def _overload(self, seconds: float) -> float:
        """Turns arrive at an even rate, for so long and until some were refused. Returns when the last one did."""
        began, rate = time.monotonic(), FACTOR * self.report.best
        open_turns: set[asyncio.Task[None]] = set()
        sent = 0
        while (now := time.monotonic()) < began + (seconds if len(self.report.refused_s) >= SOME else 10 * seconds):
            for _ in range(int((now - began) * rate) - sent):
                sent += 1
                task = asyncio.create_task(self._one())
                open_turns.add(task)
                task.add_done_callback(open_turns.discard)
            await asyncio.sleep(0.5 / rate)
        stopped = time.monotonic()
        self.report.offered = sent / (stopped - began)
        self.report.goodput = len(self.report.admitted_s) / (stopped - began)
        self._left = open_turns
        return stopped

    async def _one(self) -> None:
        answer, took_s = await self._turn()
        if answer.status_code == 200:
            self.report.admitted_s.append(took_s)
        elif answer.status_code == 429:
            self.report.refused_s.append(took_s)
            self.report.without_retry_time += "retry-after" not in answer.headers
        else:
            self.report.other.append(f"{answer.status_code}: {answer.text[:200]}")

    async def _recover(self, stopped: float) -> None:
        """Until a turn, sent now, takes no longer than the slowest of those before the overload."""
        usual_s = max(self.report.calm_s)
        while time.monotonic() < stopped + 60:
            answer, took_s = await self._turn()
            self.report.answers_again |= answer.status_code == 200
            if answer.status_code == 200 and took_s <= usual_s:
                self.report.recovery_s = time.monotonic() - took_s - stopped
                break
            await asyncio.sleep(0.1)
        if self._left:
            await asyncio.wait(self._left)


def overload(calm_s: float, overload_s: float, num_tokens: int = TOKENS) -> Report:
    """Start a server with few places and a short queue on a tiny model, and overload it."""
    with tempfile.TemporaryDirectory(prefix="sessile-overload-") as folder:
        model = make_served_llama(Path(folder) / "model")
        with ServerProcess(Path(folder) / "data", "--model", str(model), *FLAGS) as server:
            return asyncio.run(Overload(server, num_tokens).run(calm_s, overload_s))


def main() -> int:
    """Entry point of ``make overload``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--calm-seconds", type=float, default=20.0)
    parser.add_argument("--json", metavar="FILE", help="write the report there too")
    given = parser.parse_args()
    report = overload(given.calm_seconds, given.seconds)
    print("\n".join(report.lines()))
    complaints = report.complaints()
    print("\n".join(f"WRONG: {complaint}" for complaint in complaints) or "nothing is wrong")
    if given.json:
        Path(given.json).write_text(json.dumps(dataclasses.asdict(report), indent=1))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
