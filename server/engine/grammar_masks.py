"""The tokens that grammars allow in a step: worked out by a thread while the model computes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from .grammar_matcher import Mask, walk

if TYPE_CHECKING:
    from .sampler import SampleRow


@dataclasses.dataclass(frozen=True, slots=True)
class StepMasks:
    """``masks`` [len(rows), words] int32 belong to the rows of logits ``rows``; ``forced`` are tokens by row of logits
    that are not sampled at all."""

    rows: npt.NDArray[np.int64]
    masks: Mask
    forced: dict[int, int]


class MaskThread:
    """Computes the masks of one step at a time. Until it is done, nobody may touch the turns' matchers."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._thread: ThreadPoolExecutor | None = None

    def start(self, rows: Sequence[SampleRow]) -> Future[StepMasks] | None:
        """Begin with the step's ``rows``; None where no turn has a grammar."""
        if all(row.sequence.grammar is None for row in rows):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessile-masks")
        return self._thread.submit(compute_masks, rows, self._words)

    def close(self) -> None:
        """Let go of the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def compute_masks(rows: Sequence[SampleRow], words: int) -> StepMasks:
    """What may be sampled in each of ``rows``; those of one guess for a turn stand together, its drafts one by one
    longer from none on."""
    constrained = [index for index, row in enumerate(rows) if row.sequence.grammar is not None]
    masks = np.full((len(constrained), words), -1, dtype=np.int32)
    forced: dict[int, int] = {}
    place = 0
    guesses = itertools.accumulate(int(not rows[index].drafted) for index in constrained)
    for _, group in itertools.groupby(zip(constrained, guesses, strict=True), key=lambda pair: pair[1]):
        indices = [index for index, _ in group]
        last = rows[indices[-1]]
        assert last.sequence.grammar is not None
        own = masks[place : place + len(indices)]
        tokens = walk(last.sequence.grammar, last.drafted, own)
        forced |= {index: token for index, token in zip(indices, tokens, strict=True) if token is not None}
        for index, mask in zip(indices, own, strict=True):
            if not mask.any():  # the grammar failed: its turn ends, whatever is sampled
                mask[:] = -1
            if rows[index].bars_stop_tokens:
                _bar(mask, rows[index].sequence.stop_token_ids)
        place += len(indices)
    return StepMasks(np.array(constrained, dtype=np.int64), masks, forced)


def _bar(mask: Mask, token_ids: frozenset[int]) -> None:
    """Forbid ``token_ids``, unless nothing else is allowed: then the grammar has its way."""
    others = mask.view(np.uint32).copy()
    for token_id in token_ids:
        others[token_id >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token_id & 31)))
    if others.any():
        mask[:] = others.view(np.int32)


def apply_masks(logits: torch.Tensor, step: StepMasks) -> None:
    """Set the logits [R, V] of tokens that are not allowed to minus infinity."""
    if logits.is_cuda:
        apply_on_device(logits, step)
        return
    bits = np.unpackbits(step.masks.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    barred = torch.from_numpy(bits ^ 1).bool()
    for place, row in enumerate(step.rows.tolist()):
        logits[row].masked_fill_(barred[place], -torch.inf)


def apply_on_device(logits: torch.Tensor, step: StepMasks) -> None:
    """As ``apply_masks``, with the masks unpacked where the logits are: they cross the bus as bits."""
    rows = torch.from_numpy(step.rows).to(logits.device)
    packed = torch.from_numpy(step.masks).to(logits.device)
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)
