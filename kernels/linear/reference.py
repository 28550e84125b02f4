"""A linear layer in plain torch, float32."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear as torch_linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """``x`` [T, K] times ``weight`` [N, K], plus bias [N], plus residual [T, N]: float32 [T, N]."""
    result = torch_linear(x.float(), weight.float())
    if bias is not None:
        result = result + bias.float()
    return result if residual is None else result + residual
