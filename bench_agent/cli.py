"""``bench-agent``: the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from .errors import BenchError

_LACKS_VALUE = "expected one argument"
_MISSING = "bench-agent needs {name}: pip install 'sessile[bench]'"


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what it does in words, its flags, and its work, which returns the exit status."""

    name: str
    says: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with the flags in a sentence, as all else that is wrong."""

    def error(self, message: str) -> NoReturn:
        remedy = "a value that begins with a dash is written FLAG=VALUE" if _LACKS_VALUE in message else None
        raise BenchError(message, remedy=remedy or f"see {self.prog} --help")


def build_parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(prog="bench-agent", description="Measure servers as agents use them.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        says = command.says[0].upper() + command.says[1:] + "."
        sub = subparsers.add_parser(command.name, help=command.says, description=says, allow_abbrev=False)
        command.add_flags(sub)
        sub.set_defaults(execute=command.execute)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: all went well; 1: an error, told in one sentence; 130: interrupted; others as it says."""
    try:
        from .commands.catalogue import COMMANDS

        given = build_parser(COMMANDS).parse_args(arguments)
        return int(given.execute(given))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sessile"):
            raise
        sys.stderr.write(_MISSING.format(name=error.name) + "\n")
        return 1
    except BenchError as error:
        sys.stderr.write(f"bench-agent: {error}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("bench-agent: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
