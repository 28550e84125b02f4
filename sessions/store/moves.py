"""Files of a folder that change their names together: all of them or none, whoever is killed in their middle.

What is to be done is written down first, under ``JOURNAL_NAME``. From then on it is done: by who wrote it, or, after
that process was killed, by the next one that has the folder to itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import StoreError
from .files import make_durable

JOURNAL_NAME = "moves-begun.json"

logger = logging.getLogger(__name__)


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file or folder and its next name, both as paths from the folder that the moves are in."""

    source: str
    target: str


_decode = msgspec.json.Decoder(tuple[Move, ...]).decode


def move_together(folder: Path, moves: Sequence[Move]) -> None:
    """Make ``moves`` in their order; for who has ``folder`` to itself.

    Each source is there and durable, and so is the folder of each target; the target is free, if not before, then by an
    earlier move. Raises OSError, and then nothing has moved; unless the way back failed too: see ``is_begun``.
    """
    _write_journal(folder, moves)
    done: list[Move] = []
    try:
        for move in moves:
            _make(folder, move)
            done.append(move)
        _end(folder, moves)
    except BaseException:
        for move in reversed(done):
            (folder / move.target).replace(folder / move.source)
        _end(folder, moves)
        make_durable(folder)  # what was to be moved may be deleted now
        raise


def finish_moves(folder: Path) -> None:
    """End what a killed process began, if there is such; for who has ``folder`` to itself.

    Raises:
        StoreError: the disk failed, or what is to be moved is not there.
    """
    journal = folder / JOURNAL_NAME
    try:
        if not is_begun(folder):
            return
        moves = _decode(journal.read_bytes())
        for move in moves:
            if not (folder / move.target).exists():
                _make(folder, move)
        _end(folder, moves)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            f"what {journal} says could not be brought to its end: {error}",
            remedy="make the folder writable; or make the moves that stand there by hand, and delete it",
        ) from error
    logger.warning("a process was killed while it exchanged files in %s: all are exchanged now", folder)


def is_begun(folder: Path) -> bool:
    """Whether moves were begun and not ended."""
    return (folder / JOURNAL_NAME).exists()


def require_ended(folder: Path) -> None:
    """Raise StoreError where moves were begun and not ended: what stands in ``folder`` may not belong together."""
    if is_begun(folder):
        raise StoreError(
            f"a restore of {folder} was interrupted",
            remedy="start the server, which finishes it, or run `sessile store restore` again",
        )


def _write_journal(folder: Path, moves: Sequence[Move]) -> None:
    journal = folder / JOURNAL_NAME
    unfinished = journal.with_name(f"{JOURNAL_NAME}.new")
    try:
        unfinished.write_bytes(msgspec.json.encode(moves))
        make_durable(unfinished)
        unfinished.replace(journal)
        make_durable(folder)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)
        raise


def _make(folder: Path, move: Move) -> None:
    (folder / move.source).replace(folder / move.target)


def _end(folder: Path, moves: Sequence[Move]) -> None:
    """All names are as they shall be: make them durable, and only then forget that there was anything to do.

    Should the machine stop and not have forgotten, then ``finish_moves`` finds that all is done.
    """
    for parent in {(folder / move.target).parent for move in moves} | {folder}:
        make_durable(parent)
    (folder / JOURNAL_NAME).unlink(missing_ok=True)
