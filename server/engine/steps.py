"""Runs steps: the model, and the choice of the tokens that follow.

A step is *launched* and its tokens are *read* later. On a CPU the model has run when ``launch`` returns. On a GPU
(``device/graph_steps.py``) it has hardly begun, and the step after may be launched meanwhile: see ``look-ahead`` in
docs/gpu.md.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from .batch import StepArrays
from .grammar_masks import StepMasks
from .model_runner import Runner
from .sampler import SampledToken, SampleRow

Masks: TypeAlias = Future[StepMasks] | None
Sample: TypeAlias = Callable[[torch.Tensor, list[SampleRow], StepMasks | None], list[SampledToken]]


class LaunchedStep(Protocol):
    """A step that is being computed."""

    def result(self) -> list[SampledToken]:
        """The token of each of the step's rows, once they are there. Called once."""
        ...


class Steps(Protocol):
    """What the engine's step asks of a device."""

    @property
    def goes_on_alone(self) -> bool:
        """Whether a launched step goes on while the host does something else."""
        ...

    def launch(self, arrays: StepArrays, masks: Masks, previous: npt.NDArray[np.int64] | None = None) -> LaunchedStep:
        """Begin a step. ``masks`` of its grammars, being made. ``previous`` [num_tokens]: which row of the step
        launched before gives the token of this row, -1: the arrays do; only where ``goes_on_alone``, for decodes."""
        ...


@dataclass(frozen=True, slots=True)
class _ComputedStep:
    logits: torch.Tensor
    rows: list[SampleRow]
    masks: Masks
    sample: Sample

    def result(self) -> list[SampledToken]:
        return self.sample(self.logits, self.rows, None if self.masks is None else self.masks.result())


class HostSteps:
    """Steps on a CPU; see ``Steps``."""

    goes_on_alone = False

    def __init__(self, runner: Runner, sample: Sample) -> None:
        self._runner = runner
        self._sample = sample

    def launch(self, arrays: StepArrays, masks: Masks, previous: npt.NDArray[np.int64] | None = None) -> LaunchedStep:
        """See ``Steps``."""
        assert previous is None, "the host knows its tokens"
        return _ComputedStep(self._runner.run(arrays), arrays.rows, masks, self._sample)
