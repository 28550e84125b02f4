"""How long work takes on the GPU, and what the GPU can do at best."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured on this GPU, in this run."""

    copy: float  # bytes a second, read and written, of a copy inside the device
    bus: float  # bytes a second of one large copy from the device to pinned memory
    matmul: float  # floating-point operations a second of a large bfloat16 product of random numbers

    @classmethod
    def measure(cls) -> Ceilings:
        source = torch.randn(_GIB // 2, device="cuda", dtype=torch.bfloat16)
        target = torch.empty_like(source)
        copy = 2 * source.nbytes / seconds([lambda: target.copy_(source)])
        piece = source[: _GIB // 8]
        host = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=True)
        bus = piece.nbytes / seconds([lambda: host.copy_(piece, non_blocking=True)])
        side = 8192
        left, right = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in "lr")
        matmul = 2 * side**3 / seconds([lambda: torch.mm(left, right)])
        return cls(copy, bus, matmul)


def seconds(variants: list[Callable[[], object]], repeat: int = 20, warm_up: int = 3) -> float:
    """Median of ``repeat`` runs by the GPU's clock. ``variants`` do the same on other memory and take turns, so that
    none finds its inputs in the cache."""
    for number in range(max(warm_up, len(variants))):
        variants[number % len(variants)]()
    torch.cuda.synchronize()
    pairs = []
    for number in range(repeat):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in "ab")  # type: ignore[no-untyped-call]
        start.record()
        variants[number % len(variants)]()
        stop.record()
        pairs.append((start, stop))
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(stop) for start, stop in pairs)) / 1000


def graph_seconds(variants: list[Callable[[], object]], repeat: int = 20) -> float:
    """As ``seconds``, each variant captured in a graph first: without the time that a launch takes the host."""
    graphs = []
    for work in variants:
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        graphs.append(graph)
    return seconds([graph.replay for graph in graphs], repeat)
