"""Runs a model over ragged, chunked batches, and writes tiny checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from embedded_model import embedded_model

from sessile.kernels.attention_batch import AttentionBatch
from sessile.server.model.causal_lm import CausalLM
from sessile.server.model.source import ModelSource, SourceKind

BLOCK_SIZE = 16
Run = Callable[[CausalLM, Sequence[Sequence[int]], int], list[torch.Tensor]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models run on one thread: a second one would only spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def run() -> Run:
    """Logits of every position of each sequence, computed ``chunk`` tokens a step with all sequences in one batch."""

    def run(model: CausalLM, sequences: Sequence[Sequence[int]], chunk: int) -> list[torch.Tensor]:
        blocks_each = -(-max(map(len, sequences)) // BLOCK_SIZE)
        # Blocks are dealt out in turn, so that no sequence's blocks are neighbours.
        tables = [list(range(i, blocks_each * len(sequences), len(sequences))) for i in range(len(sequences))]
        pool = model.kv_layout(BLOCK_SIZE).allocate(blocks_each * len(sequences))
        done = [0] * len(sequences)
        rows: list[list[torch.Tensor]] = [[] for _ in sequences]
        while any(d < len(s) for d, s in zip(done, sequences, strict=True)):
            active = [i for i, s in enumerate(sequences) if done[i] < len(s)]
            new = {i: list(sequences[i][done[i] : done[i] + chunk + i]) for i in active}
            batch = AttentionBatch.build(
                [tables[i] for i in active],
                [done[i] + len(new[i]) for i in active],
                [len(new[i]) for i in active],
                BLOCK_SIZE,
            )
            token_ids = torch.tensor([token for i in active for token in new[i]])
            logits = model.logits(model.forward(token_ids, batch, pool))
            for i, part in zip(active, logits.split([len(new[i]) for i in active]), strict=True):
                rows[i].append(part)
                done[i] += len(new[i])
        return [torch.cat(parts) for parts in rows]

    return run


@pytest.fixture(scope="session")
def embedded() -> ModelSource:
    """The embedded model, from the user's cache or fetched."""
    return embedded_model()


@pytest.fixture
def folder_source(tmp_path: Path) -> ModelSource:
    return ModelSource("tiny", tmp_path, SourceKind.FOLDER)
