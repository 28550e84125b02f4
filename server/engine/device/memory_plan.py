"""How large the KV pool of a GPU can be, found by running the largest step once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ....kernels.kv_layout import KVLayout
from ....sessions.errors import ConfigError
from .interface import DeviceInterface, Memory

_GIB = 2**30
# Kept free of what is left after the profile run: the allocator's gaps, cuBLAS, other processes.
_SPARE = 0.06
_LEAST_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one device, after the weights were loaded."""

    total: int
    free: int
    step: int  # of the largest step, while it runs
    graphs: int
    staging: int = 0  # of blocks on their way to and from the tiers below

    @property
    def kv(self) -> int:
        """What the pool may take."""
        return int((self.free - self.step - self.graphs - self.staging) * (1 - _SPARE))

    def describe(self) -> str:
        """The numbers, for a person."""
        return (
            f"of {_gib(self.total)} are {_gib(self.free)} free after the weights; the largest step takes "
            f"{_gib(self.step)}, graphs {_gib(self.graphs)}, staging buffers {_gib(self.staging)}"
        )


def plan_memory(
    device: DeviceInterface, largest_step: Callable[[], None], graph_bytes: int, staging_bytes: int = 0
) -> MemoryPlan:
    """Run ``largest_step`` and see what it takes.

    Raises:
        ConfigError: it does not even fit alone.
    """
    memory = device.memory()
    try:
        step = device.peak_bytes(largest_step)
    except MemoryError as error:
        raise out_of_memory(device, "the largest step") from error
    except RuntimeError as error:  # torch.OutOfMemoryError is one, and not of every backend
        if "out of memory" not in str(error).lower():
            raise
        raise out_of_memory(device, "the largest step") from error
    return MemoryPlan(memory.total, memory.free, step, graph_bytes, staging_bytes)


def num_blocks(plan: MemoryPlan, layout: KVLayout, wanted_bytes: int) -> int:
    """Blocks for ``wanted_bytes`` (0: all that is free).

    Raises:
        ConfigError: with the numbers, where that is more than is free, or what is free is too little.
    """
    if wanted_bytes > max(plan.kv, 0):
        raise ConfigError(
            f"engine.kv_memory_bytes asks for {_gib(wanted_bytes)} of KV, {_gib(max(plan.kv, 0))} are left: "
            + plan.describe(),
            field="engine.kv_memory_bytes",
            remedy=f"ask for at most {max(plan.kv, 0)}, or lower engine.max_batch_tokens, or take a smaller model",
        )
    blocks = (wanted_bytes or plan.kv) // layout.block_bytes
    if blocks < _LEAST_BLOCKS:
        raise ConfigError(
            f"the GPU has room for {max(blocks, 0)} blocks of KV, {_LEAST_BLOCKS} are the least: {plan.describe()}",
            field="engine.kv_memory_bytes",
            remedy="end other programs on the GPU, lower engine.max_batch_tokens, or take a smaller model",
        )
    return blocks


def out_of_memory(device: DeviceInterface, what: str) -> ConfigError:
    """The error of a start for which memory did not suffice."""
    memory = device.memory()
    return ConfigError(
        f"out of memory: {what} does not fit; {_gib(memory.free)} of {_gib(memory.total)} are free",
        field="engine.max_batch_tokens",
        remedy="end other programs on the GPU, lower engine.max_batch_tokens, or take a smaller model",
    )


@contextmanager
def weights_fit(before: Memory, field: str) -> Iterator[None]:
    """For the time of loading the weights that ``field`` of the configuration names to a GPU that has ``before``.

    Raises:
        ConfigError: with the numbers, where they do not fit.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"out of memory: the weights of {field} do not fit in the {_gib(before.free)} that were free of the GPU's "
            f"{_gib(before.total)}",
            field=field,
            remedy="take a smaller or a quantised model, or end other programs on the GPU",
        ) from error


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
