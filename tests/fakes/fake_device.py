"""A GPU that is not there: it does as little as it may. Work stays in its stream until somebody waits for it, and each
stream goes on only as far as it has to; so whoever reads or overwrites too early finds the wrong bytes. Launches that
do not go through it (a step with a prompt) are done at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sessile.server.engine.device.interface import Memory

GIB = 2**30


class Stream:
    """Work that was put in it and is not done yet."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._put = self._done = 0

    def put(self, work: Callable[[], None]) -> int:
        """Returns the work's number."""
        self._work.append(work)
        self._put += 1
        return self._put

    def catch_up(self, number: int) -> None:
        """Do all up to work ``number``."""
        while self._done < number:
            work = self._work.popleft()
            work()
            self._done += 1

    @property
    def last(self) -> int:
        return self._put


@dataclass
class FakeEvent:
    device: FakeDevice
    stream: Stream
    number: int

    def wait(self) -> None:
        with self.device.lock:
            self.device.log.append("wait")
            self.stream.catch_up(self.number)


@dataclass
class FakeGraph:
    device: FakeDevice
    work: Callable[[], tuple[Tensor, ...]]
    outputs: tuple[Tensor, ...]

    def replay(self) -> None:
        """Into the tensors of the capture, as a graph does."""
        self.device.log.append("replay")
        self.device.put(self._run)

    def _run(self) -> None:
        for output, fresh in zip(self.outputs, self.work(), strict=True):
            output.copy_(fresh)
        self.device.log.append("replayed")


class FakeDevice:
    """``log`` has what was asked for, in order, and "replayed" where a graph was done."""

    def __init__(self, free: int = 8 * GIB, step_bytes: int = GIB, fails: bool = False) -> None:
        self.log: list[str] = []
        self.lock = threading.RLock()
        self._free, self._step_bytes, self._fails = free, step_bytes, fails
        self._steps, self._copies = Stream(), Stream()
        self._on_copies = threading.local()

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 0x7F, dtype=torch.uint8)  # rubbish, as fresh memory is

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.log.append(f"copy {source.numel() * source.element_size()}")
        self.put(lambda: target.copy_(source))

    def put(self, work: Callable[[], object]) -> None:
        with self.lock:
            self._current.put(torch.inference_mode()(work))

    def record(self) -> FakeEvent:
        with self.lock:
            return FakeEvent(self, self._current, self._current.last)

    def capture(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[FakeGraph, tuple[Tensor, ...]]:
        self.synchronize()
        work()
        self.log.append("capture")
        outputs = work()
        return FakeGraph(self, work, outputs), outputs

    @contextmanager
    def on_copy_stream(self) -> Iterator[None]:
        self.log.append("copies begin")
        with self.lock:
            self._wait_for(self._copies, self._steps)
        self._on_copies.value = True
        try:
            yield
        finally:
            self._on_copies.value = False
        self.log.append("copies end")

    def finish_steps(self) -> None:
        """Do what is in the stream of the steps, as a step that is computed at once must find it done."""
        with self.lock:
            self._steps.catch_up(self._steps.last)

    def synchronize(self) -> None:
        with self.lock:
            for stream in (self._copies, self._steps):
                stream.catch_up(stream.last)

    def memory(self) -> Memory:
        return Memory(self._free, 16 * GIB)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        if self._fails:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        work()
        return self._step_bytes

    @property
    def _current(self) -> Stream:
        return self._copies if getattr(self._on_copies, "value", False) else self._steps

    def _wait_for(self, stream: Stream, other: Stream) -> None:
        number = other.last
        stream.put(lambda: other.catch_up(number))
