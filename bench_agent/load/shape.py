"""How the sessions of a workload are put to a server."""

from __future__ import annotations

import enum
import math

import msgspec

from ..errors import BenchError
from .attempts import RETRIES


class Arrivals(enum.StrEnum):
    """When sessions start: as places become free, at a rate (evenly or at random), or as in the trace."""

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"
    TRACE = "trace"


class History(enum.StrEnum):
    """Which answers the later turns build on: the server's own, or those of the trace."""

    SAMPLED = "sampled"
    RECORDED = "recorded"


class LoadShape(msgspec.Struct, frozen=True, kw_only=True):
    """The load. The same shape, workload and seed are the same load on any server.

    ``concurrency``: sessions at a time (closed arrivals). ``rate``: sessions a second (constant, poisson).
    ``speedup`` divides the trace's arrival times. ``ramp_s``: the first sessions start spread over so long.
    ``duration_s``: no turn starts later; sessions are run again until then. ``repeats``: the whole load so many times,
    each with a first line of its own so that no repeat finds the last one's cache. ``retries``: for a busy or
    unreachable server, while nothing of the answer had come. ``default_output_tokens``: for turns that do not say.
    """

    arrivals: Arrivals = Arrivals.CLOSED
    concurrency: int = 1
    rate: float | None = None
    speedup: float = 1.0
    ramp_s: float = 0.0
    duration_s: float | None = None
    repeats: int = 1
    seed: int = 0
    history: History = History.SAMPLED
    retries: int = RETRIES
    default_output_tokens: int = 64
    exact_length: bool = True
    temperature: float = 0.0
    send_tools: bool = True

    def check(self) -> None:
        """Raises BenchError naming the flag."""
        if self.concurrency < 1 or self.repeats < 1:
            raise BenchError("--concurrency and --repeats have to be 1 or more")
        if self.arrivals in (Arrivals.CONSTANT, Arrivals.POISSON) and self.rate is None:
            raise BenchError(f"{self.arrivals} arrivals need a rate", remedy="pass --rate SESSIONS_PER_SECOND")
        for name, value in (("rate", self.rate), ("speedup", self.speedup), ("duration", self.duration_s)):
            if value is not None and not 0 < value < math.inf:
                raise BenchError(f"--{name} has to be a number above 0", field=name)
        if not 0 <= self.ramp_s < math.inf or not 0 <= self.temperature < math.inf or self.retries < 0:
            raise BenchError("--ramp, --temperature and --retries have to be 0 or more")
        self._check_arrivals()

    def _check_arrivals(self) -> None:
        """A flag that would change nothing is a load other than the one that was meant."""
        closed, timed = self.arrivals is Arrivals.CLOSED, self.arrivals is Arrivals.TRACE
        for flag, given, taken in (
            ("--concurrency", self.concurrency != 1, closed),
            ("--ramp", self.ramp_s > 0, closed),
            ("--rate", self.rate is not None, not closed and not timed),
            ("--speedup", self.speedup != 1, timed),
        ):
            if given and not taken:
                raise BenchError(
                    f"{flag} has no meaning with {self.arrivals} arrivals", remedy="leave it out, or change --arrivals"
                )
