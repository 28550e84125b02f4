"""Tests of the Triton kernels in Triton's interpreter: test_triton_interpreted.py runs them in a process of their own,
since the interpreter must be chosen before triton is imported."""

from __future__ import annotations

import os

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
