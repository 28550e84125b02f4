"""The flags of commands that work on a server's data folder, without the server."""

from __future__ import annotations

import argparse


def folder_flags() -> argparse.ArgumentParser:
    """``--data-dir`` and ``--config``, for before the action and behind it.

    They have no defaults, so that what stands before is not undone by what is left out behind: the parser of the whole
    command sets ``folder_defaults``.
    """
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    flags.add_argument("--data-dir", metavar="PATH", help="the server's data folder (variable: SESSILE_DATA_DIR)")
    flags.add_argument("--config", metavar="FILE", help="the server's TOML file (variable: SESSILE_CONFIG)")
    return flags


def folder_defaults() -> dict[str, None]:
    """Neither flag is given."""
    return {"data_dir": None, "config": None}
