"""Guesses of a smaller model with the same tokenizer, which has a KV pool of its own."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from ....sessions.cache.block_pool import BlockPool
from ...model.causal_lm import CausalLM
from ..batch import StepArrays
from ..kv_cache import KVCache
from ..model_runner import ModelRunner
from ..sequence import Sequence
from .proposal import Ask, Proposal, Source

_PROMPT_TOKENS_A_STEP = 256  # of a prompt that the model has not read yet


@dataclass(slots=True)
class _Reading:
    """How far the model has read a turn, and what it guessed behind that."""

    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0  # tokens of the turn whose KV is in the blocks
    guessed: list[int] = field(default_factory=list)  # tokens behind them; the KV of all but the last is there too
    guessed_at: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of one turn for one step of the model."""

    reading: _Reading
    start: int
    token_ids: npt.NDArray[np.int32]


class DraftModelProposer:
    """Reads each turn that it is asked for and goes on with the likeliest tokens, up to ``longest``.

    The model must know the same token ids. Turns that were asked for longest ago give way where its pool is full.
    """

    def __init__(self, model: CausalLM, device: torch.device, kv_bytes: int, block_size: int, longest: int) -> None:
        layout = model.kv_layout(block_size)
        self._kv_cache = KVCache(layout, max(1, kv_bytes // layout.block_bytes), device)
        self._pool = BlockPool(self._kv_cache.num_blocks)
        self._runner = ModelRunner(model, self._kv_cache, device)
        self._block_size = block_size
        self._most_tokens = min(model.max_position, self._kv_cache.num_blocks * block_size)
        self._longest = longest
        self._readings: OrderedDict[Sequence, _Reading] = OrderedDict()

    def propose(self, asks: list[Ask]) -> list[list[Proposal]]:
        """See ``Proposer``. A turn whose prompt is not read yet gets no guess, but is read on."""
        readings = [self._reading(ask) for ask in asks]
        ready = [
            (ask, reading)
            for ask, reading in zip(asks, readings, strict=True)
            if reading is not None
            and self._readings.get(ask.sequence) is reading  # it has not given way to another of these
            and self._catch_up(ask.sequence, reading)
        ]
        if ready:
            self._guess(ready)
        done = {id(reading) for _, reading in ready}
        return [
            [Proposal(tuple(r.guessed[: ask.most]), Source.DRAFT_MODEL, 1)] if r is not None and id(r) in done else []
            for ask, r in zip(asks, readings, strict=True)
        ]

    def ended(self, sequence: Sequence) -> None:
        """See ``Proposer``."""
        reading = self._readings.pop(sequence, None)
        if reading is not None:
            self._pool.release(reading.block_ids)

    def close(self) -> None:
        """See ``Proposer``."""

    def check_integrity(self) -> None:
        """Raise AssertionError unless each block is free or a turn's. For tests."""
        self._pool.check_integrity()
        held = sum(len(reading.block_ids) for reading in self._readings.values())
        assert held + self._pool.num_free == self._kv_cache.num_blocks, "a block has no owner"

    def _reading(self, ask: Ask) -> _Reading | None:
        """The turn's, with blocks for all that may be guessed; None where there is no room, or nothing to guess."""
        sequence = ask.sequence
        wanted = -(-(sequence.num_tokens + self._longest) // self._block_size)
        if ask.most < 1 or sequence.num_tokens + self._longest > self._most_tokens:
            return None
        reading = self._readings.setdefault(sequence, _Reading())
        self._readings.move_to_end(sequence)
        while (missing := wanted - len(reading.block_ids)) > 0:
            blocks = self._pool.allocate(missing) if self._pool.num_free >= missing else None
            if blocks is not None:
                reading.block_ids += blocks
            elif next(iter(self._readings)) is sequence:
                return None
            else:
                self.ended(next(iter(self._readings)))
        self._take_over(sequence, reading)
        return reading

    def _take_over(self, sequence: Sequence, reading: _Reading) -> None:
        """Guesses that were right have been read."""
        came = sequence.token_ids[reading.guessed_at :]
        for guess, token in zip(reading.guessed[:-1], came.tolist(), strict=False):
            if guess != token:
                break
            reading.num_computed += 1
        reading.guessed = []
        reading.num_computed = min(reading.num_computed, sequence.num_tokens - 1)  # the last one's logits are needed

    def _catch_up(self, sequence: Sequence, reading: _Reading) -> bool:
        """Read on; False where more than the last few tokens are still to be read."""
        while sequence.num_tokens - reading.num_computed > self._longest + 1:
            left = sequence.num_tokens - reading.num_computed
            stop = reading.num_computed + min(left - 1, _PROMPT_TOKENS_A_STEP)
            self._run([_Piece(reading, reading.num_computed, sequence.token_ids[reading.num_computed : stop])])
            reading.num_computed = stop
            if left > _PROMPT_TOKENS_A_STEP:
                return False
        return True

    def _guess(self, ready: list[tuple[Ask, _Reading]]) -> None:
        pieces = [_Piece(r, r.num_computed, ask.sequence.token_ids[r.num_computed :]) for ask, r in ready]
        for ask, reading in ready:
            reading.num_computed = reading.guessed_at = ask.sequence.num_tokens
        for number in range(self._longest):
            tokens = self._run(pieces)
            for (_, reading), token in zip(ready, tokens, strict=True):
                reading.guessed.append(token)
            pieces = [_Piece(r, r.guessed_at + number, np.array(r.guessed[-1:], dtype=np.int32)) for _, r in ready]

    @torch.inference_mode()
    def _run(self, pieces: list[_Piece]) -> list[int]:
        """Compute ``pieces``; returns the likeliest token behind each."""
        return self._runner.run(_arrays(pieces, self._block_size)).argmax(dim=-1).tolist()


def _arrays(pieces: list[_Piece], block_size: int) -> StepArrays:
    counts = np.array([len(piece.token_ids) for piece in pieces], dtype=np.int32)
    starts = np.array([piece.start for piece in pieces], dtype=np.int32)
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    owner = np.repeat(np.arange(len(pieces)), counts)
    positions = np.arange(query_start[-1], dtype=np.int32) - query_start[owner] + starts[owner]
    tables = np.zeros((len(pieces), max(len(piece.reading.block_ids) for piece in pieces)), dtype=np.int32)
    for row, piece in enumerate(pieces):
        tables[row, : len(piece.reading.block_ids)] = piece.reading.block_ids
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    return StepArrays(
        token_ids=np.concatenate([piece.token_ids for piece in pieces]).astype(np.int64),
        positions=positions,
        slot_mapping=slots,
        block_tables=tables,
        query_start=query_start,
        context_lens=starts + counts,
        logits_rows=query_start[1:].astype(np.int64) - 1,
        rows=[],
    )
