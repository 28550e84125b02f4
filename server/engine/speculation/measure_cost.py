"""Measures, before the first turn, how long steps of several rows take."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..batch import StepArrays
from ..kv_cache import KVCache
from ..model_runner import Runner

_CONTEXT = 256
_ROWS_EACH = 8  # of a sequence, at most
_ROWS = (1, 8, 4, 16, 32, 64)
_TRIES = 3  # the first of them warms up
_SLOW_S = 0.1  # a step that takes longer is tried once
_MOST_S = 1.0  # a slow model is measured at the first two sizes alone


def measure_step_cost(
    runner: Runner, kv_cache: KVCache, most_rows: int, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds of a step by rows. The pool must be unused: its first blocks are written."""
    seconds: dict[int, float] = {}
    spent = 0.0
    block_size = kv_cache.layout.block_size
    context = min(_CONTEXT, kv_cache.num_blocks * block_size)
    for rows in _ROWS:
        if rows > most_rows or context <= _ROWS_EACH:
            continue
        if spent > _MOST_S and len(seconds) > 1:
            break
        arrays = _arrays(rows, context, block_size)
        tries = [_seconds(runner, arrays, clock)]
        while len(tries) < _TRIES and tries[-1] < _SLOW_S:
            tries.append(_seconds(runner, arrays, clock))
        spent += sum(tries)
        seconds[rows] = min(tries)
    return seconds


def _seconds(runner: Runner, arrays: StepArrays, clock: Callable[[], float]) -> float:
    started = clock()
    runner.run(arrays).argmax(dim=-1).tolist()  # on a GPU: wait for it
    return clock() - started


def _arrays(rows: int, context: int, block_size: int) -> StepArrays:
    """Sequences of up to ``_ROWS_EACH`` new tokens, all over the same blocks."""
    counts = [min(_ROWS_EACH, rows - start) for start in range(0, rows, _ROWS_EACH)]
    positions = np.concatenate([np.arange(context - count, context) for count in counts])
    query_start = np.concatenate([[0], np.cumsum(counts)])
    return StepArrays(
        token_ids=np.zeros(rows, dtype=np.int64),
        positions=positions.astype(np.int32),
        slot_mapping=positions.astype(np.int64),
        block_tables=np.tile(np.arange(-(-context // block_size), dtype=np.int32), (len(counts), 1)),
        query_start=query_start.astype(np.int32),
        context_lens=np.full(len(counts), context, dtype=np.int32),
        logits_rows=np.arange(rows, dtype=np.int64),
        rows=[],
    )
