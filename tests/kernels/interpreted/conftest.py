"""Tests of the Triton kernels in Triton's interpreter: test_triton_interpreted.py runs them in a process of their own,
since the interpreter must be chosen before triton is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _seeded_and_poisoned() -> Iterator[None]:
    """Fresh memory is NaN, so that an element which a kernel did not write shows."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
