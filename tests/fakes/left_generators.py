"""Finds asynchronous generators that were begun and left, for the garbage collector to close."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def left_generators() -> Iterator[list[str]]:
    """The names of those that are collected in the context unfinished; complete when it is left."""
    begin, close = sys.get_asyncgen_hooks()
    left: list[str] = []

    def note(generator: AsyncGenerator[Any, Any]) -> None:
        left.append(generator.__name__)
        if close is not None:
            close(generator)

    gc.collect()
    sys.set_asyncgen_hooks(begin, note)
    try:
        yield left
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(begin, close)
