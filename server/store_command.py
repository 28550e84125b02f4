"""``sessile store``: copy the session store, list its copies, and go back to the last good one."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ..sessions.store.copies import StoreCopies, require_sound, restore_newest
from ..sessions.store.files import DATABASE_NAME


def run_store(given: argparse.Namespace, data_dir: Path) -> int:
    """Run one of the commands on the store in ``data_dir`` and return the exit status. Raises StoreError."""
    match given.action:
        case "check":
            require_sound(data_dir / DATABASE_NAME)
            sys.stdout.write(f"{data_dir / DATABASE_NAME} is sound\n")
        case "copy":
            sys.stdout.write(f"{StoreCopies(data_dir).make()}\n")
        case "copies":
            for copy in StoreCopies(data_dir).all():
                status = copy.stat()
                sys.stdout.write(f"{_time(status.st_mtime)}  {status.st_size / 2**20:8.1f} MiB  {copy}\n")
        case "restore":
            source, aside = restore_newest(data_dir)
            made = _time(source.stat().st_mtime)
            sys.stdout.write(
                f"the store is again as it was at {made}; what was there before is in {aside}\n"
                "sessions opened and turns taken since then are missing; KV on disk is found again by its content\n"
            )
    return 0


def store_parser() -> argparse.ArgumentParser:
    """The command line behind ``sessile store``."""
    parser = argparse.ArgumentParser(prog="sessile store", description="Look after the session store.")
    parser.add_argument("--data-dir", metavar="PATH", help="the server's data folder")
    parser.add_argument("--config", metavar="FILE", help="the server's TOML file")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("check", help="read all of the store and check it; works beside a running server")
    actions.add_parser("copy", help="make a copy now; works beside a running server, which makes one every 6 hours")
    actions.add_parser("copies", help="list the copies, newest first")
    actions.add_parser("restore", help="put the newest sound copy in the store's place; the server must not run")
    return parser


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
