"""What the cost model knew at the end of an engine's life, kept for the next one.

One small file a machine and model in the cache folder: what decides its name is all that the measurements depend on. A
file that cannot be read, or says what this machine does not show, is as good as none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from blake3 import blake3

from ...sessions.cache.cost_model import Calibration, CostModel
from ...sessions.cache.lower_tiers import LowerTiers
from ...sessions.cache.tiers import Tier
from ..model.causal_lm import CausalLM
from .calibration import load_samples, measure, prefill_samples
from .kv_cache import KVCache, arithmetic_of

logger = logging.getLogger(__name__)

CHECKED_PREFILLS = ((16, 0), (128, 0))  # new tokens, context; the first warms up
MOST_OFF = 2.0  # by more than this factor a kept calibration is not of this machine as it is now
MOST_OFF_LOAD = 5.0  # a single load varies more


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file. ``model``: its name, for a person; block size in tokens and bytes."""

    model: str
    block_size: int
    block_bytes: int
    calibration: Calibration

    def break_even_tokens(self) -> dict[str, int | None]:
        """From how many tokens on loading them from each tier beats computing them; None: never."""
        cost = CostModel(self.calibration, self.block_size, self.block_bytes)
        return {name: cost.break_even_tokens(Tier(name)) for name in self.calibration.loads}


def newest(folder: Path) -> Kept | None:
    """What was kept last in ``folder``; None: nothing that can be read."""
    try:
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return None
    return next((kept for kept in map(_read, files) if kept is not None), None)


class KeptCalibration:
    """``folder`` is made when the first one is kept. ``model``: its name. ``names``: what else the measurements depend
    on."""

    def __init__(self, folder: Path, model: str, names: Sequence[str]) -> None:
        self._folder = folder
        self._model = model
        self._block_size = self._block_bytes = 0
        self._names = [*names, platform.machine(), _cpu_name(), str(_num_cores())]
        self._path: Path | None = None

    def calibrate(self, model: CausalLM, kv_cache: KVCache, tiers: LowerTiers) -> Calibration:
        """What was kept, if a quick check agrees, else what is measured now. The pool must be unused."""
        device = kv_cache.pool.device
        names = [*self._names, kv_cache.layout.name, arithmetic_of(device)]
        if device.type == "cuda":
            names.append(torch.cuda.get_device_name(device))
        digest = blake3("\0".join([*names, str(kv_cache.layout.block_bytes)]).encode()).hexdigest()[:24]
        self._path = self._folder / f"{digest}.json"
        self._block_size, self._block_bytes = kv_cache.layout.block_size, kv_cache.layout.block_bytes
        kept = _read(self._path)
        if kept is not None and self._agrees(kept.calibration, model, kv_cache, tiers):
            return kept.calibration
        measured = measure(model, kv_cache, tiers)
        self.keep(measured)
        return measured

    def keep(self, calibration: Calibration) -> None:
        """Put ``calibration`` in the place of what was kept. A folder that cannot be written is no error."""
        if self._path is None:
            return
        kept = Kept(
            model=self._model, block_size=self._block_size, block_bytes=self._block_bytes, calibration=calibration
        )
        new = self._path.with_suffix(f".{os.getpid()}.new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.encode(kept))
            new.replace(self._path)
        except OSError as error:
            logger.warning("the calibration cannot be kept in %s: %s", self._folder, error.strerror)
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)

    def _agrees(self, kept: Calibration, model: CausalLM, kv_cache: KVCache, tiers: LowerTiers) -> bool:
        if not {tier.value for tier in tiers.local} <= set(kept.loads):
            return False
        if tiers.disk is not None and kept.cached_disk is None:
            return False
        cost = CostModel(kept, kv_cache.layout.block_size, kv_cache.layout.block_bytes)
        for prefill in prefill_samples(model, kv_cache, CHECKED_PREFILLS):
            if not _near(cost.prefill_s(prefill.num_tokens, prefill.context), prefill.seconds, MOST_OFF):
                return False
        for tier in tiers.local:
            for load in load_samples(tiers[tier], kv_cache.layout.block_bytes, (1,)):
                if not _near(cost.load_s(tier, load.num_bytes, cached=1.0), load.seconds, MOST_OFF_LOAD):
                    return False
        return True


def _read(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def _near(predicted: float, seen: float, factor: float) -> bool:
    return predicted / factor <= seen <= predicted * factor


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
