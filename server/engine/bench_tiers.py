"""Measures what the tiers are for: the time to the first token of a long session, by where its KV is.

``python -m sessile.server.engine.bench_tiers [TRACES]`` prints the whole table: the tiers alone against plain copies
(``sessions.cache.bench``), then this, then, where a folder of traces is named, the share of recorded prompts that a
small pool computes (``sessions.cache.bench_replay``). Run it on a quiet machine. What such a pool does to streams takes
minutes: ``bench_working_set``.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...kernels.backend import prepare
from ...sessions.cache import bench, bench_replay
from ..model.registry import LoadedModel, load_model, resolve_model
from .cache_messages import CacheCall, SuspendPath
from .core import EngineCore
from .engine_config import EngineConfig
from .lower_tiers import TierSetup, open_lower_tiers
from .messages import SubmitTurn, TokensBySource
from .sampling_params import SamplingParams

TOKENS = 6000
NEW_TOKENS = 16
GIB = 2**30


class Bench:
    """An engine on the embedded model over ``folder``; ``host`` bytes of host memory."""

    def __init__(self, model: LoadedModel, folder: Path, host: int) -> None:
        config = EngineConfig(
            kv_memory_bytes=GIB // 2, host_memory_bytes=host, disk_path=str(folder), disk_quota_bytes=GIB
        )
        tiers = TierSetup(partial(open_lower_tiers, config))
        self.core = EngineCore(config, model.model, torch.device("cpu"), time.monotonic, model.fingerprint, tiers)
        self._ids = itertools.count()
        self._paths: list[list[int]] = []

    def first_token(self, token_ids: list[int]) -> tuple[float, TokensBySource]:
        """Seconds to the first token of a turn, and where its prompt came from."""
        params = SamplingParams(temperature=0.0, max_tokens=1)
        self._paths.append(token_ids)
        started = time.perf_counter()
        self.core.submit(SubmitTurn(turn_id=str(next(self._ids)), token_ids=token_ids, sampling=params, owner="bench"))
        while True:
            if self.core.only_waits:
                time.sleep(0.0005)
            for output in self.core.step():
                if output.usage is not None:
                    return time.perf_counter() - started, output.usage.tokens_by_source

    def suspend_all(self) -> None:
        """Push all turns' paths out of the pool, the latest first."""
        for token_ids in reversed(self._paths):
            self.core.call(CacheCall(0, SuspendPath(token_ids=token_ids, owner="bench")))
            while not self.core.take_answers():
                time.sleep(0.001)


def main() -> None:
    """Print the table."""
    if len(sys.argv) > 2:
        sys.exit("usage: python -m sessile.server.engine.bench_tiers [TRACES]")
    sys.stdout.write("-- the tiers alone\n")
    with _arguments():
        bench.main()
    sys.stdout.write(f"\n-- {TOKENS} tokens of the embedded model: the next turn, {NEW_TOKENS} tokens longer\n")
    for line in _first_tokens():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    if len(sys.argv) == 2:
        sys.stdout.write("\n-- recorded sessions on a tenth of their working set\n")
        for line in bench_replay.replay(Path(sys.argv[1]), bench_replay.SESSIONS):
            sys.stdout.write(f"{line}\n")


@contextmanager
def _arguments() -> Iterator[None]:
    """Without ours: the folder of traces is not where the disk is measured."""
    ours, sys.argv = sys.argv, sys.argv[:1]
    yield
    sys.argv = ours


def _first_tokens() -> Iterator[str]:
    prepare("cpu", lambda stage, fraction: None)
    model = load_model(resolve_model(None), device=torch.device("cpu"), dtype="bfloat16")
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    path: list[int] = rng.integers(1000, 40000, TOKENS).tolist()
    longer = [[*path, *rng.integers(1000, 40000, NEW_TOKENS).tolist()] for _ in range(6)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "kv"
        engine = Bench(model, folder, GIB)
        cold, _ = engine.first_token(path)
        yield _line("computed", cold, TokensBySource(computed=TOKENS))
        device = min(engine.first_token(longer[i]) for i in (0, 1))
        yield _line("from DEVICE", *device)
        hosts = []
        for prompt in longer[2:4]:
            engine.suspend_all()
            hosts.append(engine.first_token(prompt))
        yield _line("from HOST", *min(hosts)) + f"  ({1e3 * (min(hosts)[0] - device[0]):.1f} ms above DEVICE)"
        yield from _errors(engine)
        engine.core.close()
        for number, (what, drop) in enumerate(
            (("from DISK, page cache", False), ("from DISK, page cache dropped", True))
        ):
            engine = Bench(model, folder, 0)
            if drop:
                _drop_pages(folder)
            seconds, sources = engine.first_token(longer[4 + number])
            yield _line(what, seconds, sources) + f"  ({cold / seconds:.1f} times as fast as computing)"
            yield from _errors(engine)
            engine.core.close()


def _line(what: str, seconds: float, sources: TokensBySource) -> str:
    parts = {name: getattr(sources, name) for name in ("device", "host", "disk", "computed")}
    came = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
    return f"{what:32} {seconds * 1e3:9.1f} ms   {came}"


def _errors(engine: Bench) -> Iterator[str]:
    stats = engine.core.stats()
    factors = ", ".join(f"{tier.tier} {tier.typical_error:.2f}" for tier in stats.tiers)
    yield f"  the cost model is off by a factor of: prefill {stats.cache.prefill_error:.2f}, {factors}"


def _drop_pages(folder: Path) -> None:
    """Make the kernel forget what it holds of the files in ``folder``."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


if __name__ == "__main__":
    main()
