"""Measures, in well under a second, what the cost model starts from: prefill seconds, and loads from each tier.

What happens later corrects it; so a few samples of each are enough.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...kernels.attention_batch import AttentionBatch
from ...sessions.cache.cost_model import Calibration, LoadSample, PrefillSample, calibrate
from ...sessions.cache.keys import KEY_BYTES
from ...sessions.cache.lower_tiers import LowerTiers
from ...sessions.cache.tiers import Entry, LoadOutcome, LowerTier, Tier
from ..model.causal_lm import CausalLM
from .kv_cache import KVCache

PREFILL_SHAPES = ((16, 0), (16, 0), (128, 0), (64, 256))  # new tokens, context; the first warms up
LOAD_BLOCKS = (1, 8, 32)
MOST_LOAD_BYTES = 32 * 2**20  # of the larger loads: those of large blocks are few
LOAD_DEADLINE_S = 1.0


def measure(model: CausalLM, kv_cache: KVCache, tiers: LowerTiers) -> Calibration:
    """Run the model and the local tiers on blocks of no meaning. The pool must be unused: its first blocks are written.

    The shared tier may not be connected yet, and others would see such blocks: its first load is its measurement.
    """
    block_bytes = kv_cache.layout.block_bytes
    counts = [count for count in LOAD_BLOCKS if count <= 8 or count * block_bytes <= MOST_LOAD_BYTES]
    loads = {tier: load_samples(tiers[tier], block_bytes, counts) for tier in tiers.local}
    cached_disk = loads.get(Tier.DISK, [])  # what was written just now is in the system's page cache still
    if tiers.disk is not None:
        loads[Tier.DISK] = load_samples(tiers.disk, block_bytes, counts, tiers.disk.leave_page_cache)
    prefills = prefill_samples(model, kv_cache, PREFILL_SHAPES)
    return calibrate(prefills, {tier: samples for tier, samples in loads.items() if samples}, cached_disk)


@torch.inference_mode()
def prefill_samples(model: CausalLM, kv_cache: KVCache, shapes: Sequence[tuple[int, int]]) -> list[PrefillSample]:
    """How long prefills of ``shapes`` (new tokens, context) take; the first one warms up. Those that do not fit the
    pool are left out."""
    samples: list[PrefillSample] = []
    block_size, device = kv_cache.layout.block_size, kv_cache.pool.device
    for num_tokens, context in shapes:
        table = list(range(-(-(context + num_tokens) // block_size)))
        if len(table) > kv_cache.num_blocks:
            continue
        batch = AttentionBatch.build([table], [context + num_tokens], [num_tokens], block_size, device)
        token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        started = time.perf_counter()
        model.forward(token_ids, batch, kv_cache.pool)[-1:].cpu()  # on a GPU: when it is done
        samples.append(PrefillSample(num_tokens, context, time.perf_counter() - started))
    return samples[1:] or samples


def load_samples(
    tier: LowerTier,
    block_bytes: int,
    counts: Sequence[int],
    before: Callable[[Sequence[bytes]], None] = lambda keys: None,
) -> list[LoadSample]:
    """How long loads of so many blocks take: store blocks under keys that mean nothing, do ``before``, load them again,
    forget them. Empty if the tier does not work now."""
    samples: list[LoadSample] = []
    for count in counts:
        blocks = np.zeros((count, block_bytes), dtype=np.uint8)
        entries = [Entry(secrets.token_bytes(KEY_BYTES), (block,)) for block in blocks]
        if all(tier.store(entries)):
            tier.sync()
            before([entry.key for entry in entries])
            started = time.perf_counter()
            outcomes = tier.load(entries, time.monotonic() + LOAD_DEADLINE_S)
            if all(outcome is LoadOutcome.HIT for outcome in outcomes):
                samples.append(LoadSample(count * block_bytes, time.perf_counter() - started))
        tier.drop([entry.key for entry in entries])
    return samples
