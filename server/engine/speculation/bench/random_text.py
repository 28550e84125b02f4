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


def seconds_a_token(core: EngineCore, batch: int, tokens: int, seed: int) -> float:
    """Of ``batch`` turns that decode side by side, each its own random tokens."""
    rng = np.random.default_rng(seed)
    for number in range(batch):
        prompt = rng.integers(100, 40_000, CONTEXT).tolist()
        sampling = SamplingParams(temperature=TEMPERATURE, top_k=1000, max_tokens=tokens, ignore_eos=True, seed=seed)
        core.submit(SubmitTurn(turn_id=f"{seed} {number}", token_ids=prompt, sampling=sampling))
    return _decode(core, batch)


def _decode(core: EngineCore, batch: int) -> float:
    begun: set[str] = set()
    while len(begun) < batch:  # the prompts
        begun |= {output.turn_id for output in core.step()}
    said, started = 0, time.perf_counter()
    while core.has_work:
        said += sum(len(output.token_ids) for output in core.step())
    return (time.perf_counter() - started) / max(1, said) * batch


def compare(model: LoadedModel, batch: int, tokens: int, rounds: int) -> dict[Speculation, float]:
    """Seconds a token and turn with speculation and without, the best of ``rounds`` that take turns."""
    engines = {mode: engine(model, mode) for mode in (Speculation.OFF, Speculation.AUTO)}
    best = dict.fromkeys(engines, float("inf"))
    for number in range(rounds):
        for mode, core in engines.items():
            best[mode] = min(best[mode], seconds_a_token(core, batch, tokens, number))
    return best
