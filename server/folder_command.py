"""Commands that work on a server's data folder, without the server."""

from __future__ import annotations

import argparse


class FolderCommand:
    """A command with actions. ``--data-dir`` and ``--config`` stand before the action or behind it, or nowhere: None.

    ``parser`` reads what stands behind ``prog``.
    """

    def __init__(self, prog: str, description: str) -> None:
        self.parser = argparse.ArgumentParser(prog=prog, description=description, parents=[_flags()])
        self.parser.set_defaults(data_dir=None, config=None)
        self._actions = self.parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(self, name: str, text: str) -> argparse.ArgumentParser:
        """A new action, and what it does, for the help; returns its parser, for flags of its own."""
        return self._actions.add_parser(name, help=text, description=f"{text}.", parents=[_flags()])


def _flags() -> argparse.ArgumentParser:
    """Flags without defaults, so that what stands before the action is not undone by what is left out behind it."""
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    flags.add_argument("--data-dir", metavar="PATH", help="the server's data folder (variable: SESSILE_DATA_DIR)")
    flags.add_argument("--config", metavar="FILE", help="the server's TOML file (variable: SESSILE_CONFIG)")
    return flags
