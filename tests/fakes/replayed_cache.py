"""The server's own prefix cache under recorded prompts: which of their tokens it had, and which it computed."""

from __future__ import annotations

import itertools

import torch
from checksum_model import ChecksumModel

from sessile.server.engine.core import EngineCore
from sessile.server.engine.engine_config import EngineConfig
from sessile.server.engine.messages import SubmitTurn, TurnOutput
from sessile.server.engine.sampling_params import SamplingParams

BLOCK = 16
_BLOCK_BYTES = 2 * BLOCK * 2 * 4


class ReplayedCache:
    """An engine core that computes nothing of worth: its tree, pool and scheduler are the real ones."""

    def __init__(self, num_blocks: int = 16384) -> None:
        model = ChecksumModel()
        model.max_position = 16384
        config = EngineConfig(kv_memory_bytes=num_blocks * _BLOCK_BYTES, max_batch_tokens=4096)
        self._core = EngineCore(config, model, torch.device("cpu"), clock=itertools.count().__next__)
        self._turns = itertools.count()

    def cached_tokens(self, prompt: list[int]) -> int:
        """Send a prompt; how many of its tokens were there before. An empty one has none."""
        if not prompt:
            return 0
        turn_id = str(next(self._turns))
        sampling = SamplingParams(temperature=0.0, max_tokens=1)
        self._core.submit(SubmitTurn(turn_id=turn_id, token_ids=prompt, sampling=sampling))
        last: TurnOutput | None = None
        while self._core.has_work:
            last = next((o for o in self._core.step() if o.finish_reason is not None), last)
        assert last is not None
        assert last.usage is not None
        sources = last.usage.tokens_by_source
        assert sources.device + sources.computed == len(prompt)
        return sources.device
