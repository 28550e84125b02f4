"""What the runner asks of a GPU. ``cuda_device`` is the real one; tests have one that keeps a record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device."""

    free: int
    total: int


class Event(Protocol):
    """A point in a stream's work."""

    def wait(self) -> None:
        """Return when the work before the event is done."""
        ...


class Graph(Protocol):
    """Work that was captured once."""

    def replay(self) -> None:
        """Put the work in the current stream, on the tensors it was captured with."""
        ...


class DeviceInterface(Protocol):
    """One GPU. Work is put in the current stream, which is each thread's own choice, and done later, in order."""

    @property
    def torch_device(self) -> torch.device: ...

    def pinned(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 in host memory that copies can be made from and to while other work runs."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Put a copy in the stream. Pinned memory must be left alone until it is done."""
        ...

    def put(self, work: Callable[[], object]) -> None:
        """Put ``work``, launches that write to tensors which stand already, in the stream."""
        ...

    def record(self) -> Event:
        """An event after all work that is in the current stream now."""
        ...

    def capture(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Graph, tuple[Tensor, ...]]:
        """Run ``work`` once to warm up, then capture it. Returns its outputs too, which each replay fills anew."""
        ...

    def on_copy_stream(self) -> AbstractContextManager[None]:
        """Within it the current stream is one for copies. Its work comes after all that is in the stream outside."""
        ...

    def memory(self) -> Memory: ...

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """Run ``work``: the most bytes that it held at once beyond what was held before."""
        ...
