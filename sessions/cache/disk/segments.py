"""Segment files: slots of one size, numbered through all files of a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from ..tiers import Block
from .index_log import write_fully
from .page_cache import page_is_cached

RESERVED_BYTES = 64 * 2**20  # of the file system: sessions often live there too, and cannot be computed again


class _OpenFile:
    """A file by its descriptor, and how many use it at the moment. Changed under the lock of its ``Segments``."""

    def __init__(self, path: Path, flags: int) -> None:
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._users = 0
        self._is_given_up = False

    def take(self) -> None:
        """One more uses it."""
        self._users += 1

    def leave(self) -> None:
        """One uses it no more; the last one closes what was given up."""
        self._users -= 1
        self._close_if_unused()

    def give_up(self) -> None:
        """Close it now, or when the last one that uses it leaves."""
        self._is_given_up = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_given_up and self._users == 0:
            os.close(self.descriptor)


class Segments:
    """Reads and writes slots. Files are made when their first slot is written. Safe from any thread.

    A file stays open while anyone reads or writes it, whatever is removed or closed meanwhile. Which slot holds what is
    the catalogue's business.
    """

    def __init__(self, folder: Path, block_bytes: int, slots_per_segment: int) -> None:
        self._folder = folder
        self._block_bytes = block_bytes
        self._slots_per_segment = slots_per_segment
        self._lock = threading.Lock()
        self._open_files: dict[int, _OpenFile] = {}
        self._unsynced: set[int] = set()

    def segment_of(self, slot: int) -> int:
        return slot // self._slots_per_segment

    def exists(self, segment: int) -> bool:
        """Whether the file of ``segment`` is open or there."""
        return segment in self._open_files or self._path(segment).exists()

    def write(self, slot: int, block: Block) -> None:
        """Put ``block``, ``block_bytes`` long, into ``slot``.

        Raises:
            OSError: the slot then holds nothing; ENOSPC also where the file would grow into the last
                ``RESERVED_BYTES`` of its file system.
        """
        segment, offset = self._place(slot)
        with self._opened(segment, os.O_CREAT) as descriptor:
            if offset + self._block_bytes > os.fstat(descriptor).st_size:
                self._require_space(descriptor)
            write_fully(descriptor, block.data, offset)
        with self._lock:
            if segment in self._open_files:  # neither removed nor closed meanwhile
                self._unsynced.add(segment)

    def read(self, slot: int, block: Block) -> bool:
        """Fill ``block`` from ``slot``; False if the file ends before its end.

        Raises:
            OSError: it cannot be read; FileNotFoundError: the file is not there.
        """
        segment, offset = self._place(slot)
        view = block.data
        with self._opened(segment) as descriptor:
            while view:
                count = os.preadv(descriptor, [view], offset)
                if count == 0:
                    return False
                view = view[count:]
                offset += count
        return True

    def is_in_page_cache(self, slot: int) -> bool:
        """Whether the middle of ``slot`` is in the system's page cache; False where the system does not tell."""
        segment, offset = self._place(slot)
        try:
            with self._opened(segment) as descriptor:
                return page_is_cached(descriptor, offset + self._block_bytes // 2)
        except OSError:
            return False

    def leave_page_cache(self, slot: int, count: int) -> None:
        """Ask the system to forget its copies of ``count`` slots from ``slot`` on. Harmless where it cannot. What the
        system keeps in units that reach beyond them stays."""
        while count > 0 and hasattr(os, "posix_fadvise"):
            segment, offset = self._place(slot)
            here = min(count, self._slots_per_segment - slot % self._slots_per_segment)
            with contextlib.suppress(OSError), self._opened(segment) as descriptor:
                os.posix_fadvise(descriptor, offset, here * self._block_bytes, os.POSIX_FADV_DONTNEED)
            slot, count = slot + here, count - here

    def num_whole_slots(self, segment: int) -> int:
        """How many slots the file of ``segment`` has room for; 0 if it is not there. Raises: OSError."""
        try:
            return min(self._path(segment).stat().st_size // self._block_bytes, self._slots_per_segment)
        except FileNotFoundError:
            return 0

    def sync(self) -> None:
        """Return when the disk has all that was written. Raises: OSError."""
        with self._lock:
            unsynced = [self._open_files[segment] for segment in self._unsynced]
            self._unsynced.clear()
            for file in unsynced:
                file.take()
        try:
            for file in unsynced:
                os.fdatasync(file.descriptor)
        finally:
            with self._lock:
                for file in unsynced:
                    file.leave()

    def remove_from(self, segment: int) -> None:
        """Delete the files of ``segment`` and of all after it. Raises: OSError."""
        while self._path(segment).exists():
            with self._lock:
                if (file := self._open_files.pop(segment, None)) is not None:
                    file.give_up()
                self._unsynced.discard(segment)
            self._path(segment).unlink()
            segment += 1

    def close(self) -> None:
        """Close the files, each as soon as nobody reads it. They are opened again when need be."""
        with self._lock:
            for file in self._open_files.values():
                file.give_up()
            self._open_files.clear()
            self._unsynced.clear()

    def _require_space(self, descriptor: int) -> None:
        system = os.fstatvfs(descriptor)
        if system.f_bavail * system.f_frsize < RESERVED_BYTES + self._block_bytes:
            raise OSError(errno.ENOSPC, f"less than {RESERVED_BYTES >> 20} MiB are left, which the sessions may need")

    def _place(self, slot: int) -> tuple[int, int]:
        segment, index = divmod(slot, self._slots_per_segment)
        return segment, index * self._block_bytes

    def _path(self, segment: int) -> Path:
        return self._folder / f"segment-{segment:05}.kv"

    @contextlib.contextmanager
    def _opened(self, segment: int, flags: int = 0) -> Iterator[int]:
        """The descriptor of a segment's file, which stays open until the end of the context."""
        with self._lock:
            file = self._open_files.get(segment)
            if file is None:
                file = self._open_files[segment] = _OpenFile(self._path(segment), os.O_RDWR | flags)
            file.take()
        try:
            yield file.descriptor
        finally:
            with self._lock:
                file.leave()
