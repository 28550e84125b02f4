"""Which implementation serves the kernels on a device, and why."""

from __future__ import annotations

import enum
import functools
import logging
from dataclasses import dataclass, field

import torch

from .cpu.build import BuildError, Progress, ensure_built
from .cpu.features import VARIABLE, chosen_level
from .cpu.library import CpuLibrary
from .cuda_config import config_of

logger = logging.getLogger(__name__)

OPS = (
    "linear",
    "paged_attention",
    "rms_norm",
    "rotary",
    "silu_mul",
    "embedding",
    "sampling",
    "decoder",
    "kv_copy",
    "moe",
)
_TORCH_ONLY = ("kv_copy", "moe")  # copies run at memory speed as they are; experts are made of the other ops


_TORCH_ON_GPU = ("embedding",)  # a gather; many rows of a dense linear layer go through torch too, to cuBLAS


class Implementation(enum.StrEnum):
    """Where an op's code comes from."""

    TORCH = "torch"  # reference.py
    CPU = "cpu"  # cpu.cpp
    TRITON = "triton"  # triton.py


@dataclass(frozen=True, slots=True)
class Selection:
    """What serves each op on a device, and why. ``library`` is there where the C++ kernels serve."""

    implementations: dict[str, Implementation]
    reason: str
    library: CpuLibrary | None = field(default=None, repr=False)

    def describe(self) -> dict[str, str]:
        """Op to what serves it, for a person."""
        level = "" if self.library is None else f", {self.library.level.label}, {self.library.threads} threads"
        return {op: f"{i}{level if i is Implementation.CPU else ''}" for op, i in self.implementations.items()}


@functools.cache
def select(device_type: str = "cpu") -> Selection:
    """The implementations that serve ``device_type`` ("cpu", "cuda"), chosen once.

    On the CPU the C++ kernels are built if they are not in the cache (see ``prepare``), and take as many threads as
    torch has at this moment: call ``torch.set_num_threads`` before.
    """
    if device_type == "cuda":
        return _triton()
    if device_type != "cpu":
        return Selection(dict.fromkeys(OPS, Implementation.TORCH), f"plain torch on {device_type}")
    level = chosen_level()
    if level is None:
        return Selection(dict.fromkeys(OPS, Implementation.TORCH), f"{VARIABLE}=torch")
    try:
        library = CpuLibrary.load(ensure_built(level, _silent), level, torch.get_num_threads())
    except (BuildError, OSError) as error:
        return Selection(dict.fromkeys(OPS, Implementation.TORCH), _warn(str(error)))
    served = {op: Implementation.TORCH if op in _TORCH_ONLY else Implementation.CPU for op in OPS}
    return Selection(served, f"C++ kernels for {level.label}", library)


def _triton() -> Selection:
    config = config_of(torch.device("cuda", torch.cuda.current_device()))
    served = {op: Implementation.TORCH if op in _TORCH_ON_GPU else Implementation.TRITON for op in OPS}
    return Selection(served, f"Triton kernels as cut for sm_{config.architecture}, {config.arithmetic} arithmetic")


def prepare(device_type: str, progress: Progress) -> Selection:
    """Builds what ``select`` needs, telling ``progress`` about it, and selects."""
    if device_type == "cpu" and (level := chosen_level()) is not None:
        try:
            ensure_built(level, progress)
        except BuildError:
            logger.debug("select says so")
    return select(device_type)


def cpu_library(device: torch.device) -> CpuLibrary | None:
    """The C++ kernels, if they serve ``device``."""
    return select(device.type).library


def _silent(stage: str, fraction: float) -> None:
    """Progress that nobody asked for."""


def _warn(reason: str) -> str:
    logger.warning(
        "the C++ kernels cannot be used (%s): plain torch serves, several times slower on a long context, with twice "
        "the memory for weights, and equal results only to rounding. Install a C++ compiler (g++ 12 or newer).",
        reason,
    )
    return f"no C++ kernels: {reason}"
