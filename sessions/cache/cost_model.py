"""What computing and loading KV take on this machine, and which of the two a turn should do.

    prefill of n new tokens on a context of c:   a + b * n + d * n * (c + n / 2)
    load of k bytes from a tier:                 latency + k / bandwidth

Calibrated once, corrected by every step and load that happens (``linear_fit``). Pure arithmetic: no clocks, no I/O.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from .linear_fit import LinearFit, Vector, fit
from .tiers import Tier


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured on a machine with a model; worth keeping between starts.

    ``prefill``: seconds a pass, a token, and a (new token, context token) pair. ``loads``: per tier, seconds a load
    and seconds a byte.
    """

    prefill: tuple[float, float, float]
    loads: dict[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillSample:
    """``num_tokens`` new tokens on ``context`` cached ones took ``seconds``."""

    num_tokens: int
    context: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class LoadSample:
    """A load of ``num_bytes`` took ``seconds``."""

    num_bytes: int
    seconds: float


def calibrate(prefills: Sequence[PrefillSample], loads: Mapping[Tier, Sequence[LoadSample]]) -> Calibration:
    """The calibration that fits measurements best.

    Raises:
        ValueError: there are none of prefills or of a tier, or some took no time.
    """
    a, b, d = fit([prefill_features(s.num_tokens, s.context) for s in prefills], [s.seconds for s in prefills])
    per_tier: dict[str, tuple[float, float]] = {}
    for tier, samples in loads.items():
        latency, per_byte = fit([(1.0, float(s.num_bytes)) for s in samples], [s.seconds for s in samples])
        per_tier[tier.value] = (latency, per_byte)
    return Calibration(prefill=(a, b, d), loads=per_tier)


def prefill_features(num_tokens: float, context: float) -> tuple[float, float, float]:
    """What the seconds of a prefill depend on: one pass, its tokens, and the pairs that attention looks at."""
    return (1.0, num_tokens, num_tokens * (context + num_tokens / 2))


@dataclasses.dataclass(slots=True)
class Accuracy:
    """How predictions compare with what was seen, over all observations since the start."""

    count: int = 0
    predicted_s: float = 0.0
    seen_s: float = 0.0
    sum_abs_log_error: float = 0.0

    def note(self, predicted: float, seen: float) -> None:
        if not (0 < predicted < math.inf and 0 < seen < math.inf):
            return
        self.count += 1
        self.predicted_s += predicted
        self.seen_s += seen
        self.sum_abs_log_error += abs(math.log(seen) - math.log(predicted))

    @property
    def typical_factor(self) -> float:
        """By which factor predictions are off, typically (the geometric mean); 1.0 is perfect."""
        return math.exp(self.sum_abs_log_error / self.count) if self.count else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A run of ``num_blocks`` consecutive blocks of a path that are in ``tier`` now."""

    tier: Tier
    num_blocks: int


@dataclasses.dataclass(frozen=True, slots=True)
class LoadPlan:
    """Load the first ``num_blocks`` of the path, compute what follows.

    ``load_s`` and ``compute_s`` are predicted for this; ``compute_all_s`` for loading nothing that is not on the
    device already.
    """

    num_blocks: int
    load_s: float
    compute_s: float
    compute_all_s: float

    @property
    def saved_s(self) -> float:
        return self.compute_all_s - self.load_s - self.compute_s


@dataclasses.dataclass(slots=True)
class Decisions:
    """What was decided since the start, in blocks."""

    loaded: dict[Tier, int] = dataclasses.field(default_factory=dict)
    recomputed: dict[Tier, int] = dataclasses.field(default_factory=dict)  # were there, were not worth loading
    demoted: dict[Tier, int] = dataclasses.field(default_factory=dict)  # to this tier
    not_demoted: dict[Tier, int] = dataclasses.field(default_factory=dict)


class CostModel:
    """Predicts, decides and learns. One owner, the engine's step; not safe for threads.

    ``margin``: a load must be predicted faster by this share, since a load that goes wrong is computed after all.
    """

    def __init__(self, calibration: Calibration, block_size: int, block_bytes: int, margin: float = 0.1) -> None:
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._margin = margin
        self._prefill = LinearFit(calibration.prefill)
        self._loads = {Tier(name): LinearFit(values) for name, values in calibration.loads.items()}
        self.prefill_accuracy = Accuracy()
        self.load_accuracy = {tier: Accuracy() for tier in self._loads}
        self.decisions = Decisions()

    # -- predictions ------------------------------------------------------------------------------------------------

    def prefill_s(self, num_tokens: int, context: int) -> float:
        """Seconds to compute ``num_tokens`` new tokens on ``context`` cached ones; 0 tokens take none."""
        return self._prefill.predict(prefill_features(num_tokens, context)) if num_tokens else 0.0

    def load_s(self, tier: Tier, num_bytes: int) -> float:
        """Seconds to load ``num_bytes`` from ``tier``; infinite if the tier was never measured. DEVICE takes none."""
        if tier is Tier.DEVICE or num_bytes == 0:
            return 0.0
        model = self._loads.get(tier)
        return math.inf if model is None else model.predict((1.0, float(num_bytes)))

    def bring_back_s(self, tier: Tier | None, start: int) -> float:
        """Seconds to have a block again that stands after ``start`` tokens, once ``tier`` has it (None: none does)."""
        compute = self.prefill_s(self._block_size, start)
        return compute if tier is None else min(compute, self.load_s(tier, self._block_bytes))

    def break_even_tokens(self, tier: Tier, context: int = 0, most: int = 1 << 20) -> int | None:
        """From how many tokens on loading them from ``tier`` beats computing them on ``context``; None: never."""

        def wins(num_blocks: int) -> bool:
            compute = self.prefill_s(num_blocks * self._block_size, context)
            return self.load_s(tier, num_blocks * self._block_bytes) * (1 + self._margin) < compute

        low, high = 0, 1
        while not wins(high):
            low, high = high, 2 * high
            if high * self._block_size > most:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if wins(middle) else (middle, high)
        return high * self._block_size

    # -- decisions --------------------------------------------------------------------------------------------------

    def plan_load(self, sources: Sequence[Source], num_tokens: int) -> LoadPlan:
        """How much of a cached path to load for a prompt of ``num_tokens``.

        ``sources``: where the path's whole blocks are, in order. Since KV is computed from left to right, what is
        loaded is a prefix: of all places to stop, the one with the least time for loading and computing together.
        """
        tiers = [source.tier for source in sources for _ in range(source.num_blocks)]
        if len(tiers) * self._block_size > num_tokens:
            raise ValueError(f"{len(tiers)} whole blocks are more than {num_tokens} tokens")
        on_device = next((i for i, tier in enumerate(tiers) if tier is not Tier.DEVICE), len(tiers))
        stops = np.arange(on_device, len(tiers) + 1)
        loads = self._load_seconds(tiers, on_device)  # [len(stops)]
        computes = self._compute_seconds(stops, num_tokens)
        best = int(np.argmin(loads * (1 + self._margin) + computes))
        stop = on_device + best
        return LoadPlan(stop, float(loads[best]), float(computes[best]), float(computes[0]))

    def count_loads(self, loaded: Sequence[Source], recomputed: Sequence[Source]) -> None:
        """A turn does what was planned: note it in ``decisions``."""
        for counts, sources in ((self.decisions.loaded, loaded), (self.decisions.recomputed, recomputed)):
            for source in sources:
                self._count(counts, source.tier, source.num_blocks)

    def worth_demoting(self, tier: Tier, num_blocks: int, context: int, reuse_probability: float) -> bool:
        """Whether blocks that lie after ``context`` tokens are worth a write to ``tier`` instead of being dropped.

        They are if the time that a later load saves, times the probability that one comes, exceeds the time of a
        load: what moving them there and keeping others out costs at least.
        """
        load = self.load_s(tier, num_blocks * self._block_bytes)
        saved = self.prefill_s(num_blocks * self._block_size, context) - load
        worth = reuse_probability * saved > load
        self._count(self.decisions.demoted if worth else self.decisions.not_demoted, tier, num_blocks)
        return worth

    # -- learning ---------------------------------------------------------------------------------------------------

    def observe_prefill(self, num_tokens: int, context: int, seconds: float) -> None:
        """A prefill, alone in its step, took ``seconds``."""
        if num_tokens > 0:
            self.prefill_accuracy.note(self.prefill_s(num_tokens, context), seconds)
            self._prefill.observe(prefill_features(num_tokens, context), seconds)

    def observe_load(self, tier: Tier, num_bytes: int, seconds: float) -> None:
        """A load took ``seconds``. The first one of a tier that was never measured is its calibration."""
        if num_bytes <= 0 or not math.isfinite(seconds) or seconds <= 0:
            return
        if tier not in self._loads:
            self._loads[tier] = LinearFit((0.1 * seconds, 0.9 * seconds / num_bytes))
            self.load_accuracy[tier] = Accuracy()
            return
        self.load_accuracy[tier].note(self.load_s(tier, num_bytes), seconds)
        self._loads[tier].observe((1.0, float(num_bytes)), seconds)

    def calibration(self) -> Calibration:
        """What is known now, to be kept for the next start."""
        a, b, d = self._prefill.coefficients
        loads = {tier.value: model.coefficients for tier, model in self._loads.items()}
        return Calibration(prefill=(a, b, d), loads={name: (c[0], c[1]) for name, c in loads.items()})

    # -- parts ------------------------------------------------------------------------------------------------------

    def _load_seconds(self, tiers: Sequence[Tier], first: int) -> Vector:
        """Seconds to load blocks ``first .. i`` for each i from ``first`` on; one load a tier that is touched."""
        seconds = np.zeros(len(tiers) - first + 1)
        kinds = np.array([list(Tier).index(tier) for tier in tiers[first:]], dtype=np.int64)
        for index, tier in enumerate(Tier):
            counts = np.concatenate([[0], np.cumsum(kinds == index)])  # blocks of this tier up to each stop
            model = self._loads.get(tier)
            if tier is Tier.DEVICE or not counts[-1]:
                continue
            if model is None:
                seconds[counts > 0] = np.inf
                continue
            sizes = counts[counts > 0] * float(self._block_bytes)
            seconds[counts > 0] += model.predict_many(np.stack([np.ones_like(sizes), sizes], axis=1))
        return seconds

    def _compute_seconds(self, stops: npt.NDArray[np.int64], num_tokens: int) -> Vector:
        contexts = stops * float(self._block_size)
        new = num_tokens - contexts
        features: Vector = np.stack([np.ones_like(new), new, new * (contexts + new / 2)], axis=1, dtype=np.float64)
        return np.where(new > 0, self._prefill.predict_many(features), 0.0)

    def _count(self, counts: dict[Tier, int], tier: Tier, num_blocks: int) -> None:
        counts[tier] = counts.get(tier, 0) + num_blocks
