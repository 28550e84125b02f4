"""A GPU that is not there: work is done at once on the CPU, and what was asked for is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sessile.server.engine.device.interface import Memory

GIB = 2**30


class FakeEvent:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def wait(self) -> None:
        self._log.append("wait")


@dataclass
class FakeGraph:
    work: Callable[[], tuple[Tensor, ...]]
    outputs: tuple[Tensor, ...]
    log: list[str]

    def replay(self) -> None:
        """Into the tensors of the capture, as a graph does."""
        self.log.append("replay")
        for output, fresh in zip(self.outputs, self.work(), strict=True):
            output.copy_(fresh)


class FakeDevice:
    def __init__(self, free: int = 8 * GIB, step_bytes: int = GIB, fails: bool = False) -> None:
        self.log: list[str] = []
        self._free, self._step_bytes, self._fails = free, step_bytes, fails

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 0x7F, dtype=torch.uint8)  # rubbish, as fresh memory is

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.log.append(f"copy {source.numel() * source.element_size()}")
        target.copy_(source)

    def record(self) -> FakeEvent:
        return FakeEvent(self.log)

    def capture(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[FakeGraph, tuple[Tensor, ...]]:
        work()
        self.log.append("capture")
        outputs = work()
        return FakeGraph(work, outputs, self.log), outputs

    @contextmanager
    def on_copy_stream(self) -> Iterator[None]:
        self.log.append("copies begin")
        yield
        self.log.append("copies end")

    def wait_for_copies(self) -> None:
        self.log.append("wait for copies")

    def memory(self) -> Memory:
        return Memory(self._free, 16 * GIB)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        if self._fails:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        work()
        return self._step_bytes
