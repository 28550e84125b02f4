"""RMS norm (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

from torch import Tensor

from . import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) * weight`` for each row of ``x`` [T, H] float32; a new tensor [T, H] float32."""
    if x.is_cuda:
        from . import triton as on_gpu

        return on_gpu.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of ``x + residual`` and that sum itself (the new residual), both new tensors [T, H] float32."""
    if x.is_cuda:
        from . import triton as on_gpu

        return on_gpu.add_rms_norm(x, residual, weight, eps)
    return reference.add_rms_norm(x, residual, weight, eps)
