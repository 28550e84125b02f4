"""Measures agents' sessions on an engine whose pool holds a tenth of their working set, against one that holds all.

``python -m sessile.server.engine.bench_working_set TRACES [--requests N] [--text-per-token BYTES]``. Recorded sessions
run on two engines with the embedded model, piece by piece in turn, so that what else the machine does strikes both
alike: one whose pool never evicts, and one of a tenth of that over a host tier of three tenths and a disk. What counts:
the share of prompt tokens that were not computed, and the seconds between a running turn's tokens.

A token stands for so many bytes of recorded text: what is shared stays shared, and the whole takes minutes, not hours.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...kernels.backend import prepare
from ...sessions.cache.bench_replay import SESSIONS, Replay, Request, read_requests
from ...sessions.cache.token_key import TOKEN_BYTES, pack_tokens, unpack_tokens
from ..model.registry import LoadedModel, load_model, resolve_model
from .core import EngineCore
from .engine_config import EngineConfig
from .lower_tiers import TierSetup, open_lower_tiers
from .messages import SubmitTurn, TokensBySource
from .sampling_params import SamplingParams

AT_ONCE = 4  # turns
PIECE = 24  # requests that one engine does before the other has its turn
NEW_TOKENS = range(8, 25)  # how many a turn generates: were it the same for all, turns would end and begin together
BLOCK_TOKENS = 16
MULTIPLIER = 0x9E3779B1  # odd: groups of recorded tokens that differ become tokens that differ, by and large


@dataclasses.dataclass(slots=True)
class Measured:
    """What the turns of one engine came to."""

    sources: TokensBySource = dataclasses.field(default_factory=TokensBySource)
    token_s: list[float] = dataclasses.field(default_factory=list)  # mean seconds a token after the first, of a turn
    first_s: list[float] = dataclasses.field(default_factory=list)  # seconds to the first token


class Agents:
    """Submits the requests of one engine: so many at once, and those of a session one after the other."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.measured = Measured()
        self._ids = itertools.count()
        self._open: dict[str, tuple[str, list[float]]] = {}  # turn -> session, and when it was submitted and got tokens

    def run(self, requests: list[Request]) -> None:
        """Do all of ``requests``."""
        waiting = list(requests)
        while waiting or self._open:
            busy = {session for session, _ in self._open.values()}
            ready = next((request for request in waiting if request.session not in busy), None)
            if ready is not None and len(self._open) < AT_ONCE:
                waiting.remove(ready)
                self._submit(ready)
            else:
                self._step()

    def _submit(self, request: Request) -> None:
        turn_id = str(next(self._ids))
        num_new = random.Random(turn_id).choice(NEW_TOKENS)  # noqa: S311 - the same in both engines
        params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
        self._open[turn_id] = (request.session, [time.perf_counter()])
        self.core.submit(
            SubmitTurn(
                turn_id=turn_id,
                token_ids=unpack_tokens(request.prompt),
                sampling=params,
                cache_salt=request.salt,
                owner=request.session,
            )
        )

    def _step(self) -> None:
        if self.core.only_waits:
            time.sleep(0.001)  # as the engine's process does
        outputs = self.core.step()
        now = time.perf_counter()
        for output in outputs:
            _, times = self._open[output.turn_id]
            times += [now] * len(output.token_ids)
            if output.usage is not None:
                self._end(output.turn_id, output.usage.tokens_by_source)
        self.core.take_events()
        self.core.take_admitted()

    def _end(self, turn_id: str, sources: TokensBySource) -> None:
        _, times = self._open.pop(turn_id)
        self.measured.sources = self.measured.sources.plus(sources)
        self.measured.first_s.append(times[1] - times[0])
        self.measured.token_s.append((times[-1] - times[1]) / (len(times) - 2))


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sessile.server.engine.bench_working_set", description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--requests", type=int, default=0, help="the first so many; 0: all")
    parser.add_argument("--text-per-token", type=int, default=64, help="bytes; a multiple of 4")
    options = parser.parse_args(arguments)
    for line in measure(options.traces, options.requests, options.text_per_token):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


def measure(traces: Path, count: int, text_per_token: int) -> Iterator[str]:
    """The lines of the report."""
    prepare("cpu", lambda stage, fraction: None)
    model = load_model(resolve_model(None), device=torch.device("cpu"), dtype="bfloat16")
    torch.set_num_threads(1)
    recorded = read_requests(traces, SESSIONS)
    requests = [_shortened(each, text_per_token // TOKEN_BYTES, model.config.vocab_size) for each in recorded]
    requests = [each for each in requests if each.prompt][: count or len(requests)]  # some were recorded without one
    all_blocks = Replay(1 << 20, None).run(requests).most_blocks
    yield f"{SESSIONS} sessions, {len(requests)} requests; their working set is {all_blocks} blocks"
    longest = max(len(request.whole) for request in requests) // TOKEN_BYTES // BLOCK_TOKENS + 2
    tenth = max(all_blocks // 10, longest * AT_ONCE // 2)
    with tempfile.TemporaryDirectory() as name:
        roomy = Agents(_engine(model, all_blocks + longest * AT_ONCE, 0, ""))
        tight = Agents(_engine(model, tenth, 3 * tenth, name))
        for first in range(0, len(requests), PIECE):
            for agents in (roomy, tight):
                agents.run(requests[first : first + PIECE])
        yield _line(f"a pool of {roomy.core.num_blocks} blocks, which holds all", roomy.measured)
        yield _line(f"one of {tenth} over {3 * tenth} in host memory and a disk", tight.measured)
        yield from _compared(roomy, tight)
        for agents in (roomy, tight):
            agents.core.close()


def _engine(model: LoadedModel, num_blocks: int, host_blocks: int, disk: str) -> EngineCore:
    block_bytes = model.model.kv_layout(BLOCK_TOKENS).block_bytes
    config = EngineConfig(
        kv_memory_bytes=num_blocks * block_bytes,
        host_memory_bytes=host_blocks * block_bytes,
        disk_path=disk,
        disk_quota_bytes=20 * num_blocks * block_bytes if disk else 0,
    )
    tiers = TierSetup(partial(open_lower_tiers, config)) if disk else None
    return EngineCore(config, model.model, torch.device("cpu"), time.monotonic, model.fingerprint, tiers)


def _shortened(request: Request, group: int, vocab_size: int) -> Request:
    """``request`` with a token for each ``group`` of its tokens, and an answer of as many as are generated at most."""
    tokens = np.asarray(unpack_tokens(request.prompt), dtype=np.uint64)
    groups = np.concatenate([tokens, np.zeros(-len(tokens) % group, dtype=np.uint64)]).reshape(-1, group)
    mixed = np.zeros(len(groups), dtype=np.uint64)
    for column in groups.T:
        mixed = (mixed * np.uint64(MULTIPLIER) + column) & np.uint64(0xFFFFFFFFFFFF)
    prompt = pack_tokens((mixed >> np.uint64(8)) % np.uint64(vocab_size))
    answer = pack_tokens(np.zeros(NEW_TOKENS[-1], dtype=np.int64))
    return dataclasses.replace(request, prompt=prompt, whole=prompt + answer)


def _line(what: str, measured: Measured) -> str:
    sources = measured.sources
    by_source = ", ".join(
        f"{getattr(sources, name):,} {name}" for name in sources.__struct_fields__ if getattr(sources, name)
    )
    p50, p95 = 1e3 * np.percentile(measured.token_s, [50, 95])
    first = 1e3 * np.percentile(measured.first_s, 50)
    return (
        f"{what}\n  {_share(measured):.2%} of {sources.total:,} prompt tokens not computed ({by_source})\n"
        f"  a token after {p50:.1f} ms (p50), {p95:.1f} ms (p95); the first after {first:.0f} ms (p50)"
    )


def _share(measured: Measured) -> float:
    return measured.sources.cached / measured.sources.total


def _compared(roomy: Agents, tight: Agents) -> Iterator[str]:
    points = 100 * (_share(roomy.measured) - _share(tight.measured))
    times = [float(np.median(agents.measured.token_s)) for agents in (roomy, tight)]
    yield f"{points:.2f} points fewer (goal 3); a token takes {times[1] / times[0] - 1:+.1%} (goal +10%)"
    stats = tight.core.stats()
    factors = ", ".join(f"{tier.tier} {tier.typical_error:.2f}" for tier in stats.tiers)
    yield f"the cost model is off by a factor of: prefill {stats.cache.prefill_error:.2f}, {factors}"
    yield f"blocks loaded {stats.cache.loaded_blocks}, computed instead {stats.cache.recomputed_blocks}"
    yield f"blocks demoted {stats.cache.demoted_blocks}, dropped instead {stats.cache.not_demoted_blocks}"


if __name__ == "__main__":
    sys.exit(main())
