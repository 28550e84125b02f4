"""Recordings of real agents, and cases of broken caches: in ``shared`` beside the checkout, or where SESSILE_RECORDINGS
says. They are no part of the project: tests that need them are skipped where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("SESSILE_RECORDINGS") or Path(__file__).resolve().parents[3] / "shared")


def recordings(*names: str) -> Path:
    """The file or folder of that name; skips the test where there is none."""
    path = FOLDER.joinpath(*names)
    if not path.exists():
        pytest.skip(f"there is no {path}; SESSILE_RECORDINGS can name another folder than {FOLDER}")
    return path
