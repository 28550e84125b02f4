"""``bench-agent schema``: the JSON schema of ``record.json``."""

from __future__ import annotations

import argparse
import sys

import msgspec

from ..report.record import record_schema


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command has no flags."""


def execute(given: argparse.Namespace) -> int:
    """Print it."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(record_schema()), indent=2).decode() + "\n")
    return 0
