"""A tokenizer, where one is given: exact token counts, and text of token ids. `tokenizers` is imported only here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import LintConfigError, UnusableInput


@dataclass(frozen=True, slots=True)
class Tokens:
    """`decode` spells ids, `count` counts the tokens of a text."""

    decode: Callable[[list[int]], str | None]
    count: Callable[[str], int]


def load_decoder(path: Path) -> Tokens:
    """Load `tokenizer.json`. Raises: UnusableInput for a bad file, LintConfigError when `tokenizers` is missing."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UnusableInput(str(path), "no tokenizer.json here")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise LintConfigError("--tokenizer needs the package `tokenizers` (pip install 'sessile[server]')") from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise UnusableInput(str(file), f"not a tokenizer: {error}") from error

    def decode(ids: list[int]) -> str | None:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return Tokens(decode, count)
