"""A random Llama with a tokenizer: all that a server needs of a model."""

from __future__ import annotations

from pathlib import Path

from byte_text import write_byte_tokenizer
from tiny_llama import TINY, Shape, make_tiny_llama


def make_served_llama(folder: Path, shape: Shape = TINY, *, max_position: int = 2048) -> Path:
    """The model's folder, with a token a byte."""
    make_tiny_llama(folder, shape, max_position=max_position)
    write_byte_tokenizer(folder)
    return folder
