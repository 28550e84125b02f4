"""The gate of a SwiGLU layer (Shazeer, 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backend import cpu_library
from ..cpu.library import pointer
from . import reference


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``gate_up`` [T, 2 * I] float32, gate first; a new tensor [T, I] float32."""
    if gate_up.is_cuda:
        from . import triton as on_gpu

        return on_gpu.silu_mul(gate_up)
    library = cpu_library(gate_up.device)
    if library is None:
        return reference.silu_mul(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=torch.float32)
    library.call("sessile_silu_mul", pointer(gate_up), rows, width, pointer(out))
    return out
