"""How the lines of the log look, of the front and of the engine: they stand between each other."""

from __future__ import annotations

import logging


def log_to_stderr(level: str) -> None:
    """Show what is logged from ``level`` (a name, in small letters) on, with the time of day."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
