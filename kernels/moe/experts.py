"""The weights of one mixture-of-experts layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..linear import PackedLinear


@dataclass(frozen=True, slots=True)
class Experts:
    """``gate_up[e]`` is [2 * I, H], ``down[e]`` [H, I]. ``normalise``: the chosen experts' weights sum to one."""

    gate_up: Sequence[PackedLinear]
    down: Sequence[PackedLinear]
    num_per_token: int
    normalise: bool
