"""Writes an export file, piece by piece."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import msgspec
from blake3 import blake3

from .format import FRAME, KV_PIECE, MAGIC, ExportedEntry, ExportEnd, ExportHeader, FrameKind, frame_checksum
from .signature import ExportKey


class FileWriter:
    """Makes the file's bytes in order: ``header``, each ``entry``, ``kv``, ``end``. Holds one piece at a time."""

    def __init__(self) -> None:
        self._num_frames = 0
        self._digest = blake3()

    def header(self, header: ExportHeader) -> bytes:
        """The file's beginning."""
        self._digest.update(MAGIC)
        return MAGIC + self._frame(FrameKind.HEADER, msgspec.json.encode(header))

    def entry(self, entry: ExportedEntry) -> bytes:
        """One entry of the log."""
        return self._frame(FrameKind.ENTRY, msgspec.msgpack.encode(entry))

    def kv(self, path: Path) -> Generator[bytes, None, None]:
        """The engine's file, which is open until the end, or until this is closed. Raises OSError where it cannot be
        read."""
        with path.open("rb") as file:
            while piece := file.read(KV_PIECE):
                yield self._frame(FrameKind.KV, piece)

    def copy(self, kind: FrameKind, payload: bytes) -> bytes:
        """A frame of another file, behind a header of this one."""
        return self._frame(kind, payload)

    def end(self, key: ExportKey) -> bytes:
        """The file's end."""
        digest = self._digest.digest()
        end = ExportEnd(num_frames=self._num_frames, digest=digest.hex(), signature=key.sign(digest).hex())
        return self._frame(FrameKind.END, msgspec.json.encode(end))

    def _frame(self, kind: FrameKind, payload: bytes) -> bytes:
        head = FRAME.pack(kind, len(payload), frame_checksum(self._num_frames, kind, payload))
        self._num_frames += 1
        frame = head + payload
        self._digest.update(frame)
        return frame
