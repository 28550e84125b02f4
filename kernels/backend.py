"""Which implementation serves the kernels on a device, and why."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass

import torch

OPS = (
    "linear",
    "paged_attention",
    "rms_norm",
    "rotary",
    "silu_mul",
    "embedding",
    "kv_copy",
    "sampling",
    "moe",
    "decoder",
)


class Implementation(enum.StrEnum):
    """Where an op's code comes from."""

    TORCH = "torch"  # reference.py
    CPU = "cpu"  # cpu.cpp
    TRITON = "triton"  # triton.py


@dataclass(frozen=True, slots=True)
class Selection:
    """What serves each op on a device. ``level`` are the CPU features in use, where that matters."""

    implementations: dict[str, Implementation]
    level: str
    reason: str

    def describe(self) -> dict[str, str]:
        """Op to one line for a person: what serves it."""
        return {op: f"{impl} ({self.level})" if self.level else str(impl) for op, impl in self.implementations.items()}


@functools.cache
def select(device_type: str = "cpu") -> Selection:
    """The implementations that serve ``device_type`` ("cpu", "cuda")."""
    return Selection(dict.fromkeys(OPS, Implementation.TORCH), "", f"plain torch on {torch.device(device_type).type}")
