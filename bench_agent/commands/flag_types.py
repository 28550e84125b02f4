"""What a flag's text may be. What is none of it argparse tells with the flag's name, before anything is started."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2


def whole(least: int) -> Callable[[str], int]:
    """Whole numbers of ``least`` or more."""

    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return found

    return read


def not_negative(text: str) -> float:
    """Numbers of 0 or more."""
    found = _finite(text)
    if found is None or found < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return found


def positive(text: str) -> float:
    """Numbers above 0."""
    found = _finite(text)
    if found is None or found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return found


def share(text: str) -> float:
    """Numbers from 0 to 1."""
    found = _finite(text)
    if found is None or not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return found


def words(text: str) -> tuple[str, ...]:
    """A text as a shell takes it apart."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be taken apart: {error}") from None


def header_name(text: str) -> str:
    """The name of an HTTP header."""
    if _TOKEN.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no header's name")
    return text


def header(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or _TOKEN.fullmatch(name) is None or not value.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, in one line")
    return name, value


def _finite(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
