"""Mixture-of-experts layer (Qwen3-MoE): softmax over all experts, the best few of each token."""

from __future__ import annotations

from torch import Tensor

from ..cuda_config import config_of
from . import reference
from .experts import Experts

__all__ = ["Experts", "moe_mlp"]


def moe_mlp(x: Tensor, router_logits: Tensor, experts: Experts) -> Tensor:
    """Weighted sum of each token's best experts' SwiGLU layers. ``x`` [T, H] and ``router_logits`` [T, E] float32;
    a new tensor [T, H] float32."""
    if x.is_cuda:
        from . import triton as on_gpu

        return on_gpu.moe_mlp(x, router_logits, experts, config_of(x.device))
    return reference.moe_mlp(x, router_logits, experts)
