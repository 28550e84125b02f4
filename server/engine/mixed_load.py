"""Measures a long prompt arriving beside running streams: ``python -m sessile.server.engine.mixed_load``.

The engine runs in this process, on the embedded model. First the prompt alone, then streams alone, then both, then the
prompt alone again. What counts: the streams' gaps between two outputs while the prompt is computed, against
``max_stall_ms``, and the prompt's time to its first token against what it takes alone.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from functools import partial

import numpy as np
import torch

from ...kernels.backend import prepare
from ..model.registry import load_model, resolve_model
from .core import EngineCore
from .engine_config import EngineConfig, Speculation
from .messages import SubmitTurn
from .sampling_params import SamplingParams
from .speculation.setup import open_drafter


class MixedLoad:
    """An engine and the times at which its turns got tokens."""

    def __init__(self, config: EngineConfig) -> None:
        torch.set_num_threads(config.threads or torch.get_num_threads())
        prepare("cpu", lambda stage, fraction: None)
        source = resolve_model(config.model, None, lambda stage, fraction: None)
        device = torch.device("cpu")
        model = load_model(source, device=device, dtype=config.dtype.value, progress=lambda stage, fraction: None)
        torch.set_num_threads(1)
        drafter = partial(open_drafter, config, model.fingerprint, None)
        self._core = EngineCore(config, model.model, device, time.monotonic, model.fingerprint, drafter=drafter)
        self._vocab_size = model.config.vocab_size
        self._chance = random.Random(0)  # noqa: S311 - the same prompts each time
        self._names = itertools.count()
        self.outputs: dict[str, list[float]] = {}

    def submit(self, prompt_tokens: int, max_tokens: int) -> str:
        """A turn of random tokens; returns its id."""
        turn_id = str(next(self._names))
        tokens = [self._chance.randrange(self._vocab_size) for _ in range(prompt_tokens)]
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self.outputs[turn_id] = []
        self._core.submit(SubmitTurn(turn_id=turn_id, token_ids=tokens, sampling=sampling))
        return turn_id

    def step(self) -> None:
        """One step of the engine."""
        outputs = self._core.step()
        now = time.monotonic()
        for output in outputs:
            self.outputs[output.turn_id] += [now] if output.token_ids else []
        self._core.take_events()
        self._core.take_admitted()

    def first_token_s(self, prompt_tokens: int) -> float:
        """Seconds to the first token of a new prompt, beside whatever runs."""
        started = time.monotonic()
        turn_id = self.submit(prompt_tokens, max_tokens=1)
        while not self.outputs[turn_id]:
            self.step()
        return self.outputs[turn_id][0] - started

    def stop(self) -> None:
        """End all turns."""
        for turn_id in self.outputs:
            self._core.abort(turn_id)
        while self._core.has_work:
            self.step()


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sessile.server.engine.mixed_load", description=__doc__)
    parser.add_argument("--model", help="as the server's flag; by default the embedded model")
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--stream-tokens", type=int, default=200, help="prompt of each stream")
    parser.add_argument("--max-stall-ms", type=float, default=EngineConfig().max_stall_ms)
    parser.add_argument("--speculation", default="off", help="as the server's flag")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args(arguments)
    config = EngineConfig(
        model=options.model,
        max_stall_ms=options.max_stall_ms,
        speculation=Speculation(options.speculation),
        threads=options.threads,
    )
    load = MixedLoad(config)
    load.first_token_s(512)
    alone = [load.first_token_s(options.prompt_tokens)]
    streams = [load.submit(options.stream_tokens, max_tokens=4000) for _ in range(options.streams)]
    while min(len(load.outputs[stream]) for stream in streams) < 60:
        load.step()
    load.first_token_s(512)  # the model of step times has seen a step of both kinds
    quiet = np.concatenate([np.diff(load.outputs[stream][-40:]) for stream in streams])
    seen = [len(load.outputs[stream]) for stream in streams]
    mixed_s = load.first_token_s(options.prompt_tokens)
    gaps = np.concatenate(
        [np.diff(load.outputs[stream][count - 1 :]) for stream, count in zip(streams, seen, strict=True)]
    )
    load.stop()
    alone.append(load.first_token_s(options.prompt_tokens))
    p50, p99 = 1000 * np.percentile(gaps, [50, 99])
    sys.stdout.write(
        f"{options.streams} streams, {options.prompt_tokens} tokens of prefill, max_stall_ms {options.max_stall_ms:g}\n"
        f"  streams before: gap p50 {1000 * np.percentile(quiet, 50):.0f} ms\n"
        f"  streams beside the prefill: gap p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {1000 * gaps.max():.0f} ms, "
        f"{len(gaps)} gaps\n"
        f"  first token: alone {alone[0]:.2f} and {alone[1]:.2f} s, beside the streams {mixed_s:.2f} s, "
        f"{mixed_s / np.mean(alone):.2f} times\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
