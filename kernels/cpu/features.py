"""Which instructions the kernels may use on this machine."""

from __future__ import annotations

import enum
import functools
import os
import platform
from pathlib import Path

VARIABLE = "SESSILE_CPU_FEATURES"


class Level(enum.IntEnum):
    """What a build of the kernels uses; each needs all that the lower ones need."""

    PLAIN = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3

    @property
    def label(self) -> str:
        return self.name.lower()

    @property
    def compiler_flags(self) -> list[str]:
        avx2 = ["-mavx2", "-mfma", "-mf16c"]
        avx512 = [*avx2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
        return {Level.PLAIN: [], Level.AVX2: avx2, Level.AVX512: avx512}.get(self, [*avx512, "-mavx512bf16"])


_NEEDED = {
    Level.AVX2: {"avx2", "fma", "f16c"},
    Level.AVX512: {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    Level.AVX512_BF16: {"avx512_bf16"},
}


@functools.cache
def machine_level() -> Level:
    """The highest level that this machine's CPU has."""
    flags = _cpu_flags()
    level = Level.PLAIN
    for candidate, needed in _NEEDED.items():
        if not needed <= flags:
            break
        level = candidate
    return level


def chosen_level() -> Level | None:
    """The machine's level, or the lower one that ``SESSILE_CPU_FEATURES`` names; None for ``torch``: no kernels.

    Raises: ValueError for an unknown name, or a level that the machine does not have.
    """
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if not wanted:
        return machine_level()
    if wanted == "torch":
        return None
    names = {level.label: level for level in Level}
    if wanted not in names:
        raise ValueError(f"{VARIABLE}={wanted} is not one of {', '.join([*names, 'torch'])}")
    if names[wanted] > machine_level():
        raise ValueError(f"{VARIABLE}={wanted}: this CPU has {machine_level().label} at most")
    return names[wanted]


def _cpu_flags() -> set[str]:
    """The flags that Linux lists for an x86 CPU; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not path.exists():
        return set()
    for line in path.read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
