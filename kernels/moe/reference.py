"""Mixture of experts: each expert runs once over the rows that chose it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..linear import linear
from ..silu_mul import silu_mul
from .experts import Experts


def moe_mlp(x: Tensor, router_logits: Tensor, experts: Experts) -> Tensor:
    weights, chosen = router_logits.float().softmax(dim=-1).topk(experts.num_per_token, dim=-1)
    if experts.normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    parts = torch.zeros(x.shape[0], experts.num_per_token, x.shape[1], dtype=torch.float32, device=x.device)
    for expert, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        if rows.numel():
            parts[rows, places] = linear(silu_mul(linear(x[rows], gate_up)), down) * weights[rows, places].unsqueeze(1)
    # Summed over a row's own choices, likeliest first: the order does not depend on other rows.
    total = parts[:, 0]
    for place in range(1, experts.num_per_token):
        total = total + parts[:, place]
    return total
