"""The embedded model, for tests that need what a real model says."""

from __future__ import annotations

import os

import pytest

from sessile.server.model.source import ModelSource, resolve_model
from sessile.sessions.errors import ModelError


def embedded_model() -> ModelSource:
    """From the user's cache, or fetched; skips the test where neither can be done, which must not be so in CI."""
    try:
        return resolve_model(None)
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the embedded model is not cached and cannot be fetched: {error}")
