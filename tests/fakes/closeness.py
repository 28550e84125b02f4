"""How the interpreted kernels are compared with their references."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close(found: Tensor, wanted: Tensor, relative: float) -> None:
    """Every element was written, and the error's norm is within ``relative`` of the norm."""
    assert found.shape == wanted.shape
    assert torch.isfinite(found.float()).all(), "an element was not written, or is not finite"
    error = (found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)
    assert error <= relative, f"relative error {float(error):.2e}, allowed {relative:.0e}"
