"""``sessile store``: copy the sessions and the batches, list the copies, and go back to the last good one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..sessions.copies.batches import contents_missing
from ..sessions.copies.copies import DataCopies, made_at, size_of
from ..sessions.copies.databases import require_sound
from ..sessions.copies.replace import ALL, Part
from ..sessions.copies.restore import restore_newest
from ..sessions.errors import StoreError
from ..sessions.store.moves import require_ended
from .folder_command import FolderCommand


def run_store(given: argparse.Namespace, data_dir: Path) -> int:
    """Run one of the commands on what is in ``data_dir`` and return the exit status. Raises StoreError."""
    _require_something(data_dir)
    match given.action:
        case "check":
            _check(data_dir)
        case "copy":
            return _copy(data_dir)
        case "copies":
            for copy in DataCopies(data_dir).all():
                sys.stdout.write(f"{_time(made_at(copy))}  {size_of(copy) / 2**20:8.1f} MiB  {copy}\n")
        case "restore":
            _restore(data_dir, ALL if given.only is None else (Part(given.only),))
    return 0


_LOST = {
    Part.SESSIONS: "sessions opened and turns taken since then are missing; KV on disk is found again by its content",
    Part.BATCHES: "files and batches made since then are missing; lines that ended since then are run again",
}


def _require_something(data_dir: Path) -> None:
    """A wrong folder is not a damaged one."""
    if not any((data_dir / part.database).exists() for part in ALL) and not DataCopies(data_dir).all():
        raise StoreError(
            f"there are neither sessions nor batches nor copies in {data_dir}",
            remedy="name the server's data folder with --data-dir, or its TOML file with --config",
        )


def _check(data_dir: Path) -> None:
    require_ended(data_dir)
    present = [data_dir / part.database for part in ALL if part is Part.SESSIONS or (data_dir / part.database).exists()]
    for path in present:
        require_sound(path)
    missing = contents_missing(data_dir) if len(present) == len(ALL) else []
    if missing:
        raise StoreError(
            f"{len(missing)} files of batches have not their contents, {missing[0]} for one",
            remedy="`sessile store restore --only batches`, or delete them",
        )
    sys.stdout.write("".join(f"{path} is sound\n" for path in present))


def _copy(data_dir: Path) -> int:
    """Make a copy. The status says whether it is whole; why batches are not in it, the log has said."""
    copies = DataCopies(data_dir)
    made = copies.make()
    sys.stdout.write(f"{made}\n")
    return 0 if copies.is_whole(made) else 1


def _restore(data_dir: Path, wanted: Sequence[Part]) -> None:
    restored = restore_newest(data_dir, parts=wanted)
    for part, source in restored.sources.items():
        sys.stdout.write(f"{part} are again as they were at {_time(made_at(source))}; {_LOST[part]}\n")
    sys.stdout.write(f"what was there before is in {restored.aside}\n")


def store_parser() -> argparse.ArgumentParser:
    """The command line behind ``sessile store``."""
    command = FolderCommand("sessile store", "Look after the sessions and the batches.")
    command.add("check", "read all of both databases and check them; works beside a running server")
    command.add("copy", "make a copy now; works beside a running server, which makes one every 6 hours")
    command.add("copies", "list the copies, newest first")
    restore = command.add("restore", "put the newest sound copy in their place; the server must not run")
    restore.add_argument("--only", choices=[part.value for part in Part], help="leave the other one as it is")
    return command.parser


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
