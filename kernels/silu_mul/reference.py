"""silu(gate) * up in plain torch, float32."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return silu(gate) * up
