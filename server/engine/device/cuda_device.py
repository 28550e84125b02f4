"""An NVIDIA GPU through torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .interface import Event, Graph, Memory


class _CudaEvent:
    def __init__(self) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()


class CudaDevice:
    """See ``DeviceInterface``. Graphs share one pool of memory: one runs at a time."""

    def __init__(self, torch_device: torch.device) -> None:
        index = torch_device.index if torch_device.index is not None else torch.cuda.current_device()
        self._device = torch.device("cuda", index)
        self._copies = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._graph_pool = torch.cuda.graph_pool_handle()

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def put(self, work: Callable[[], object]) -> None:
        work()

    def record(self) -> Event:
        return _CudaEvent()

    def capture(self, work: Callable[[], tuple[Tensor, ...]]) -> tuple[Graph, tuple[Tensor, ...]]:
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_pool):
            outputs = work()
        return graph, outputs

    @contextmanager
    def on_copy_stream(self) -> Iterator[None]:
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            yield

    def memory(self) -> Memory:
        free, total = torch.cuda.mem_get_info(self._device)
        return Memory(free, total)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before
