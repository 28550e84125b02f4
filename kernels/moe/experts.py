"""The weights of one mixture-of-experts layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..linear import PackedLinear

if TYPE_CHECKING:
    from .triton import ExpertTable


@dataclass(frozen=True, slots=True)
class Experts:
    """``gate_up[e]`` is [2 * I, H], ``down[e]`` [H, I]. ``normalise``: the chosen experts' weights sum to one.

    ``tables`` are made here where the weights are on a GPU: the addresses that its kernels read.
    """

    gate_up: Sequence[PackedLinear]
    down: Sequence[PackedLinear]
    num_per_token: int
    normalise: bool
    tables: tuple[ExpertTable, ExpertTable] | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.down[0].storage.is_cuda and self.down[0].storage.dtype.itemsize < 4:
            from .triton import ExpertTable

            tables = ExpertTable.of(tuple(self.gate_up)), ExpertTable.of(tuple(self.down))
            object.__setattr__(self, "tables", tables)
