"""Runs steps on a GPU: those that decode or verify drafts as graphs, captured at start; those with prompts, launch by
launch.

A step is put in the stream by ``launch`` and its tokens are read by ``collect``. Between the two the host is free, and
the step after may be launched already: a row of it can say that its token is the one that a row of this step samples,
which the GPU then takes over without the host knowing it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....kernels.sampling import argmax
from ...model.causal_lm import CausalLM
from ..batch import StepArrays, to_device
from ..kv_cache import KVCache
from .buckets import Bucket, Buckets
from .interface import DeviceInterface, Event, Graph
from .step_buffers import Sizes, StepBuffers

Progress = Callable[[str, float], None]
Draw = Callable[[Tensor], Tensor]  # from logits [R, vocab_size] to token ids [R] int64


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    logits: Tensor  # [rows, vocab_size] float32


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step in the stream. ``logits`` [rows sampled, vocab_size] stand until a later step is launched."""

    logits: Tensor
    host_token_ids: Tensor  # [rows sampled] int64 in pinned memory, once ``done``: what was drawn of each row
    done: Event


class GraphRunner:
    """Owns the graphs and their buffers. The model and the KV pool must stay where they are."""

    def __init__(self, model: CausalLM, kv_cache: KVCache, device: DeviceInterface, sizes: Sizes) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._device = device
        self._buckets = Buckets(sizes.sequences, sizes.rows)
        self._buffers = StepBuffers(device, sizes)
        self._graphs: dict[Bucket, _Captured] = {}
        self._sampled = torch.zeros(sizes.rows, dtype=torch.int64, device=device.torch_device)
        self._landing = [self._pinned_ids(sizes.rows), self._pinned_ids(sizes.rows)]

    @torch.inference_mode()
    def capture(self, progress: Progress) -> None:
        """Capture all buckets. ``progress`` hears a stage and a fraction from 0 to 1."""
        buckets = list(self._buckets.all())
        for number, bucket in enumerate(buckets, start=1):
            self._graphs[bucket] = self._capture_one(bucket)
            progress("capture graphs", number / len(buckets))

    def run(self, arrays: StepArrays) -> Tensor:
        """See ``Runner``."""
        return self.launch(arrays).logits

    @torch.inference_mode()
    def launch(
        self, arrays: StepArrays, previous: npt.NDArray[np.int64] | None = None, draw: Draw | None = None
    ) -> Ticket:
        """Put a step in the stream. ``previous`` [num_tokens]: the row of the last step's samples that is the token of
        this row, or -1: only for steps that have a bucket. ``draw`` chooses the tokens; None: the likeliest.

        Raises: ValueError where ``previous`` is given and there is no bucket.
        """
        bucket = self._buckets.find(arrays.num_sequences, max(arrays.query_lens))
        captured = self._graphs.get(bucket) if bucket is not None else None
        if bucket is None or captured is None:
            if previous is not None:
                raise ValueError("a step with prompts must know its tokens")
            return self.launch_without_graph(arrays, draw)
        self._buffers.write(arrays, bucket, previous)
        captured.graph.replay()
        logits = captured.logits[: len(arrays.logits_rows)]
        if draw is not None:
            self._choose(logits, draw)
        return self._ticket(logits)

    def collect(self, ticket: Ticket) -> list[int]:
        """The tokens of a step, when it is done."""
        ticket.done.wait()
        token_ids: list[int] = ticket.host_token_ids.tolist()
        return token_ids

    @torch.inference_mode()
    def launch_without_graph(self, arrays: StepArrays, draw: Draw | None = None) -> Ticket:
        """Put a step in the stream launch by launch, whether it has a bucket or not."""
        batch = to_device(arrays, self._device.torch_device)
        hidden = self._model.forward(batch.token_ids, batch.attention, self._kv_cache.pool)
        if not len(arrays.logits_rows):
            return self._ticket(hidden.new_empty(0, 0))
        logits = self._model.logits(hidden[batch.logits_rows])
        self._choose(logits, argmax if draw is None else draw)
        return self._ticket(logits)

    def _choose(self, logits: Tensor, draw: Draw) -> None:
        """Let ``draw`` say what was sampled of each row."""
        target = self._sampled[: logits.shape[0]]
        self._device.put(lambda: target.copy_(draw(logits)))

    def _ticket(self, logits: Tensor) -> Ticket:
        self._landing.reverse()
        count = logits.shape[0]
        landed = self._landing[0][:count]
        if count:
            self._device.copy(landed, self._sampled[:count])
        return Ticket(logits, landed, self._device.record())

    def _capture_one(self, bucket: Bucket) -> _Captured:
        tensors, batch, rows = self._buffers.device_tensors, self._buffers.batch(bucket), bucket.num_rows

        def work() -> tuple[Tensor, ...]:
            previous = tensors.previous[:rows]
            taken = self._sampled[previous.clamp(min=0)]
            token_ids = torch.where(previous >= 0, taken, tensors.token_ids[:rows])
            hidden = self._model.forward(token_ids, batch, self._kv_cache.pool)
            logits = self._model.logits(hidden[tensors.logits_rows[:rows]])
            self._sampled[:rows] = argmax(logits)
            return (logits,)

        self._buffers.write(_nothing(), bucket)  # a step of padding alone, so that a warm-up writes to no block
        graph, (logits,) = self._device.capture(work)
        return _Captured(graph, logits)

    def _pinned_ids(self, count: int) -> Tensor:
        return self._device.pinned(count * torch.int64.itemsize).view(torch.int64)


def _nothing() -> StepArrays:
    wide, narrow = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    return StepArrays(
        token_ids=wide,
        positions=narrow,
        slot_mapping=wide,
        block_tables=np.zeros((0, 0), dtype=np.int32),
        query_start=np.zeros(1, dtype=np.int32),
        context_lens=narrow,
        logits_rows=wide,
        rows=[],
    )
