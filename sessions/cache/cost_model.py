"""What computing and loading KV take on this machine, and which of the two a turn should do.

    prefill of n new tokens on a context of c:   a + b * n + d * n * (c + n / 2)
    load of k bytes from a tier:                 latency + k / bandwidth

The disk is two things: what the system has in its page cache comes at the speed of memory, the rest at the disk's.

Calibrated once, corrected by every step and load that happens (``linear_fit``). Pure arithmetic: no clocks, no I/O.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from .linear_fit import LinearFit, Vector, fit
from .tiers import Tier

_KINDS = {tier: number for number, tier in enumerate(Tier)}


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured on a machine with a model; worth keeping between starts.

    ``prefill``: seconds a pass, a token, and a (new token, context token) pair. ``loads``: per tier, seconds a load
    and seconds a byte; ``cached_disk``: the same of what the system's page cache has of the disk tier.
    """

    prefill: tuple[float, float, float]
    loads: dict[str, tuple[float, float]]
    cached_disk: tuple[float, float] | None = None


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


def calibrate(
    prefills: Sequence[PrefillSample],
    loads: Mapping[Tier, Sequence[LoadSample]],
    cached_disk: Sequence[LoadSample] = (),
) -> Calibration:
    """The calibration that fits measurements best. ``cached_disk``: loads from the disk that the page cache served.

    Raises:
        ValueError: there are none of prefills or of a tier, or some took no time.
    """
    a, b, d = fit([prefill_features(s.num_tokens, s.context) for s in prefills], [s.seconds for s in prefills])
    per_tier = {tier.value: _fit_loads(samples) for tier, samples in loads.items()}
    cached = _fit_loads(cached_disk) if cached_disk else None
    return Calibration(prefill=(a, b, d), loads=per_tier, cached_disk=cached)


def _fit_loads(samples: Sequence[LoadSample]) -> tuple[float, float]:
    latency, per_byte = fit([(1.0, float(s.num_bytes)) for s in samples], [s.seconds for s in samples])
    return latency, per_byte


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
    """A run of ``num_blocks`` consecutive blocks of a path that are in ``tier`` now. ``cached``: of a run on the disk,
    the share that is in the system's page cache, as far as that was asked."""

    tier: Tier
    num_blocks: int
    cached: float = 0.0


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
        self._cached_disk = None if calibration.cached_disk is None else LinearFit(calibration.cached_disk)
        self.prefill_accuracy = Accuracy()
        self.load_accuracy = {tier: Accuracy() for tier in self._loads}
        self.decisions = Decisions()

    # -- predictions ------------------------------------------------------------------------------------------------

    def prefill_s(self, num_tokens: int, context: int) -> float:
        """Seconds to compute ``num_tokens`` new tokens on ``context`` cached ones; 0 tokens take none."""
        return self._prefill.predict(prefill_features(num_tokens, context)) if num_tokens else 0.0

    def load_s(self, tier: Tier, num_bytes: int, cached: float = 0.0) -> float:
        """Seconds to load ``num_bytes`` from ``tier``, of which the system's page cache has the share ``cached``;
        infinite if the tier was never measured. DEVICE takes none."""
        if tier is Tier.DEVICE or num_bytes == 0:
            return 0.0
        parts = self._parts(tier, num_bytes, cached)
        return sum(math.inf if model is None else model.predict((1.0, size)) for model, size in parts)

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
        num_blocks = sum(source.num_blocks for source in sources)
        if num_blocks * self._block_size > num_tokens:
            raise ValueError(f"{num_blocks} whole blocks are more than {num_tokens} tokens")
        below = list(itertools.dropwhile(lambda source: source.tier is Tier.DEVICE, sources))
        on_device = num_blocks - sum(source.num_blocks for source in below)
        stops = np.arange(on_device, num_blocks + 1)
        loads = self._load_seconds(below)  # [len(stops)]
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

    def observe_load(self, tier: Tier, num_bytes: int, seconds: float, cached: float = 0.0) -> None:
        """A load took ``seconds``; ``cached``: the share of it that was in the system's page cache when it was planned.
        The first one of a tier that was never measured is its calibration."""
        if num_bytes <= 0 or not math.isfinite(seconds) or seconds <= 0:
            return
        if tier not in self._loads:
            self._loads[tier] = LinearFit((0.1 * seconds, 0.9 * seconds / num_bytes))
            self.load_accuracy[tier] = Accuracy()
            return
        predicted = self.load_s(tier, num_bytes, cached)
        self.load_accuracy[tier].note(predicted, seconds)
        for model, size in self._parts(tier, num_bytes, cached):
            if model is not None:  # each part took its share, as far as is known
                part = model.predict((1.0, size))
                model.observe((1.0, size), seconds * part / predicted)

    def calibration(self) -> Calibration:
        """What is known now, to be kept for the next start."""
        a, b, d = self._prefill.coefficients
        loads = {tier.value: model.coefficients for tier, model in self._loads.items()}
        cached = None if self._cached_disk is None else self._cached_disk.coefficients
        return Calibration(
            prefill=(a, b, d),
            loads={name: (c[0], c[1]) for name, c in loads.items()},
            cached_disk=None if cached is None else (cached[0], cached[1]),
        )

    # -- parts ------------------------------------------------------------------------------------------------------

    def _parts(self, tier: Tier, num_bytes: int, cached: float) -> list[tuple[LinearFit | None, float]]:
        """What a load consists of: each part's model, and its bytes."""
        if tier is not Tier.DISK or self._cached_disk is None or not cached:
            return [(self._loads.get(tier), float(num_bytes))]
        parts = [(self._cached_disk, num_bytes * cached), (self._loads.get(tier), num_bytes * (1.0 - cached))]
        return [(model, size) for model, size in parts if size >= 1.0]

    def _load_seconds(self, sources: Sequence[Source]) -> Vector:
        """Seconds to load the first blocks of ``sources``, none to all of them; one load a tier that is touched."""
        lengths = [source.num_blocks for source in sources]
        kinds = np.repeat([_KINDS[source.tier] for source in sources], lengths)
        cached = np.repeat([source.cached if self._cached_disk is not None else 0.0 for source in sources], lengths)
        seconds = np.zeros(len(kinds) + 1)
        for tier in {source.tier for source in sources} - {Tier.DEVICE}:
            here = (kinds == _KINDS[tier]).astype(np.float64)
            if tier is Tier.DISK:
                seconds += self._seconds_of(self._cached_disk, here * cached)
                here *= 1.0 - cached
            seconds += self._seconds_of(self._loads.get(tier), here)
        return seconds

    def _seconds_of(self, model: LinearFit | None, blocks: Vector) -> Vector:
        """Seconds to load the first 0, 1, … of ``blocks``, each of which counts as so much of a block."""
        counts = np.concatenate([[0.0], np.cumsum(blocks)])
        seconds = np.zeros(len(counts))
        sizes = counts[counts > 0] * self._block_bytes
        if model is None:
            seconds[counts > 0] = np.inf
        elif len(sizes):
            seconds[counts > 0] = model.predict_many(np.stack([np.ones_like(sizes), sizes], axis=1))
        return seconds

    def _compute_seconds(self, stops: npt.NDArray[np.int64], num_tokens: int) -> Vector:
        contexts = stops * float(self._block_size)
        new = num_tokens - contexts
        features: Vector = np.stack([np.ones_like(new), new, new * (contexts + new / 2)], axis=1, dtype=np.float64)
        return np.where(new > 0, self._prefill.predict_many(features), 0.0)

    def _count(self, counts: dict[Tier, int], tier: Tier, num_blocks: int) -> None:
        counts[tier] = counts.get(tier, 0) + num_blocks
