"""What speculation costs where there is nothing to guess: the real model is made to say random tokens."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch

from .....kernels.backend import prepare
from ....model.registry import LoadedModel, load_model, resolve_model
from ....model.source import unwatched
from ...core import EngineCore
from ...engine_config import EngineConfig, Speculation
from ...messages import SubmitTurn
from ...sampling_params import SamplingParams
from ..setup import open_drafter

CONTEXT = 512
TEMPERATURE = 100.0  # any token is as likely as any other


def load() -> LoadedModel:
    """The embedded model, with the CPU's kernels."""
    prepare("cpu", unwatched)
    model = load_model(resolve_model(None), device="cpu", dtype="bfloat16")
    torch.set_num_threads(1)  # the kernels have threads of their own
    return model


def engine(model: LoadedModel, speculation: Speculation) -> EngineCore:
    """An engine of its own, without tiers and without a folder."""
    config = EngineConfig(speculation=speculation, kv_memory_bytes=2**30, host_memory_bytes=0, disk_quota_bytes=0)
    drafter = partial(open_drafter, config, model.fingerprint, None)
    return EngineCore(config, model.model, torch.device("cpu"), time.perf_counter, model.fingerprint, drafter=drafter)


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
    """What some of an engine's steps took, and how many tokens came."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._seconds: list[float] = []
        self._tokens = 0

    def step(self) -> None:
        """One step."""
        started = time.perf_counter()
        outputs = self._core.step()
        self._seconds.append(time.perf_counter() - started)
        self._tokens += sum(len(output.token_ids) for output in outputs)

    @property
    def seconds_a_token(self) -> float:
        """Of all turns together. More than twice the median is what somebody else who had the machine made of a step:
        eight rows take less."""
        return float(np.minimum(self._seconds, 2 * np.median(self._seconds)).sum()) / max(1, self._tokens)


def compare(model: LoadedModel, batch: int, steps: int, rounds: int) -> list[tuple[float, float]]:
    """For each of ``rounds`` of ``steps`` the seconds a token and turn without speculation and with it.

    Two engines step by turns, so that whatever else goes on meets both alike.
    """
    cores = engine(model, Speculation.OFF), engine(model, Speculation.AUTO)
    for core in cores:
        begin(core, batch, 2 * steps * rounds)
    found = []
    for _ in range(rounds):
        off, auto = (Decoding(core) for core in cores)
        for number in range(steps):
            for each in (off, auto) if number % 2 else (auto, off):
                each.step()
        found.append((off.seconds_a_token * batch, auto.seconds_a_token * batch))
    return found
