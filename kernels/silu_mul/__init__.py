"""The gate of a SwiGLU layer (Shazeer, 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from torch import Tensor

from . import reference


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``gate_up`` [T, 2 * I] float32, gate first; a new tensor [T, I] float32."""
    if gate_up.is_cuda:
        from . import triton as on_gpu

        return on_gpu.silu_mul(gate_up)
    return reference.silu_mul(gate_up)
