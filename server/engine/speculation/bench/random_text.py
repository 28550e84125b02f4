"""What speculation costs where there is nothing to guess: the real model is made to say random tokens."""

from __future__ import annotations

import time

import numpy as np
import torch

from .....kernels.backend import prepare
from ....model.registry import LoadedModel, load_model, resolve_model
from ....model.source import unwatched
from ...core import EngineCore
from ...engine_config import EngineConfig, Speculation
from ...kv_cache import KVCache
from ...messages import SubmitTurn
from ...model_runner import Runner
from ...sampling_params import SamplingParams
from ...sequence import Sequence
from ..drafter import Branches, Drafter, DraftRequest, VerifiedDraft
from ..setup import open_drafter

CONTEXT = 256
MOST_A_STEP = 2  # tokens of a turn, on average, that there is room for
TEMPERATURE = 100.0  # any token is as likely as any other


def load() -> LoadedModel:
    """The embedded model, with the CPU's kernels."""
    prepare("cpu", unwatched)
    model = load_model(resolve_model(None), device="cpu", dtype="bfloat16")
    torch.set_num_threads(1)  # the kernels have threads of their own
    return model


class Switch:
    """A drafter that can be turned off for a step: then it is as if there were none."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.on = False
        self.num_damaged_files = 0
        self.ended, self.counters, self.close = drafter.ended, drafter.counters, drafter.close

    def draft(self, requests: list[DraftRequest], budget: int) -> list[Branches]:
        """See ``Drafter``."""
        return self._drafter.draft(requests, budget) if self.on else [() for _ in requests]

    def skips(self) -> bool:
        """See ``Drafter``."""
        return self._drafter.skips() if self.on else True

    def verified(self, sequence: Sequence, verified: list[VerifiedDraft]) -> None:
        """See ``Drafter``."""
        if self.on:
            self._drafter.verified(sequence, verified)

    def stepped(self, rows: int, seconds: float) -> None:
        """See ``Drafter``."""
        if self.on:
            self._drafter.stepped(rows, seconds)


def engine(model: LoadedModel) -> tuple[EngineCore, Switch]:
    """An engine without tiers and without a folder, and the switch of its drafter, which is ``auto``."""
    config = EngineConfig(speculation=Speculation.AUTO, kv_memory_bytes=2**30, host_memory_bytes=0, disk_quota_bytes=0)
    switches: list[Switch] = []

    def drafter(runner: Runner, kv_cache: KVCache) -> Drafter:
        switches.append(Switch(open_drafter(config, model.fingerprint, None, runner, kv_cache)))
        return switches[0]

    core = EngineCore(config, model.model, torch.device("cpu"), time.perf_counter, model.fingerprint, drafter=drafter)
    return core, switches[0]


def begin(core: EngineCore, batch: int, tokens: int) -> None:
    """Let ``core`` say ``tokens`` random tokens in each of ``batch`` turns; their prompts are computed here."""
    rng = np.random.default_rng(batch)
    for number in range(batch):
        prompt = rng.integers(100, 40_000, CONTEXT).tolist()
        sampling = SamplingParams(temperature=TEMPERATURE, top_k=1000, max_tokens=tokens, ignore_eos=True, seed=number)
        core.submit(SubmitTurn(turn_id=f"{batch} {number}", token_ids=prompt, sampling=sampling))
    begun: set[str] = set()
    while len(begun) < batch:
        begun |= {output.turn_id for output in core.step()}


class Decoding:
    """What some steps took, and how many tokens came of them."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._tokens = 0

    def step(self, core: EngineCore) -> None:
        """One step."""
        started = time.perf_counter()
        outputs = core.step()
        self._seconds.append(time.perf_counter() - started)
        self._tokens += sum(len(output.token_ids) for output in outputs)

    @property
    def seconds_a_token(self) -> float:
        """Of all turns together. More than twice the median is what somebody else who had the machine made of a step:
        eight rows take less."""
        return float(np.minimum(self._seconds, 2 * np.median(self._seconds)).sum()) / max(1, self._tokens)


def compare(model: LoadedModel, batch: int, steps: int, rounds: int) -> list[tuple[float, float]]:
    """For each of ``rounds`` the seconds a token and turn of ``steps`` without speculation and as many with it.

    They are steps of one engine by turns, so whatever else there is meets both alike.
    """
    core, switch = engine(model)
    begin(core, batch, 2 * steps * rounds * MOST_A_STEP)
    found = []
    for _ in range(rounds):
        off, auto = Decoding(), Decoding()
        for number in range(2 * steps):
            switch.on = number % 4 in (1, 2)
            (auto if switch.on else off).step(core)
        found.append((off.seconds_a_token * batch, auto.seconds_a_token * batch))
    return found
