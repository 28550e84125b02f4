"""The terminal, for texts of which some come from users and servers: brackets and colons mean nothing in them."""

from __future__ import annotations

from rich.console import Console


def terminal(*, stderr: bool = False) -> Console:
    """Standard output, or standard error."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
