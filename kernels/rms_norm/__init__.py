"""RMS norm (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backend import cpu_library
from ..cpu.library import CpuLibrary, RmsNormArgs, pointer
from . import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) * weight`` for each row of ``x`` [T, H] float32; a new tensor [T, H] float32."""
    if x.is_cuda:
        from . import triton as on_gpu

        return on_gpu.rms_norm(x, weight, eps)
    library = cpu_library(x.device)
    if library is None:
        return reference.rms_norm(x, weight, eps)
    return _run(library, x, None, weight, eps)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of ``x + residual`` and that sum itself (the new residual), both new tensors [T, H] float32."""
    if x.is_cuda:
        from . import triton as on_gpu

        return on_gpu.add_rms_norm(x, residual, weight, eps)
    library = cpu_library(x.device)
    if library is None:
        return reference.add_rms_norm(x, residual, weight, eps)
    return _run(library, x, residual, weight, eps)


def _run(library: CpuLibrary, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if weight.shape != x.shape[-1:] or (residual is not None and residual.shape != x.shape):
        raise ValueError(f"shapes do not fit: x {tuple(x.shape)}, weight {tuple(weight.shape)}")
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    arguments = (*(pointer(t) for t in (x, residual, weight, out, total)), rows, width, eps)
    library.call("sessile_rms_norm", RmsNormArgs(*arguments))
    return out, total
