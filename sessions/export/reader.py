"""Reads an export file's frames as its bytes come, and lets nothing through that is not as it was written."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from blake3 import blake3

from .format import FRAME, MAGIC, MAX_PAYLOAD, ExportEnd, FrameKind, damaged, frame_checksum

_END = msgspec.json.Decoder(ExportEnd)


class Frame(msgspec.Struct, frozen=True):
    """One frame; ``offset`` is where it begins."""

    kind: FrameKind
    payload: bytes
    offset: int


class FrameReader:
    """Feed it the file's bytes in pieces of any size. It holds one frame at most.

    All errors are RequestErrors that say at which byte the file stops being what an export wrote.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._offset = 0  # of the buffer's first byte
        self._num_frames = 0
        self._digest = blake3()
        self.end: ExportEnd | None = None

    @property
    def digest(self) -> bytes:
        """BLAKE3 of all frames before the end."""
        return self._digest.digest()

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """The frames that became whole, in order; the end is no frame of its own, see ``end``."""
        self._buffer += piece
        if self._offset == 0 and not self._take_magic():
            return
        while (frame := self._next_frame()) is not None:
            if frame.kind is FrameKind.END:
                self._take_end(frame)
            else:
                yield frame

    def close(self) -> ExportEnd:
        """There are no more bytes. Raises RequestError if the file ends too early."""
        if self.end is None:
            raise damaged("it ends before its end", self._offset + len(self._buffer))
        return self.end

    def _take_magic(self) -> bool:
        if not MAGIC.startswith(bytes(self._buffer[: len(MAGIC)])):
            raise damaged("it does not begin as an export of a session does", 0)
        if len(self._buffer) < len(MAGIC):
            return False
        self._digest.update(MAGIC)
        self._advance(len(MAGIC))
        return True

    def _next_frame(self) -> Frame | None:
        if self.end is not None and self._buffer:
            raise damaged("there are bytes behind its end", self._offset)
        if len(self._buffer) < FRAME.size:
            return None
        number, length, checksum = FRAME.unpack_from(self._buffer)
        kind = self._kind(number)
        if self._buffer[1:4] != b"\0\0\0" or length > MAX_PAYLOAD[kind]:
            raise damaged(f"frame {self._num_frames} has no possible head", self._offset)
        if len(self._buffer) < FRAME.size + length:
            return None
        payload = bytes(self._buffer[FRAME.size : FRAME.size + length])
        if frame_checksum(self._num_frames, kind, payload) != checksum:
            raise damaged(f"frame {self._num_frames} ({kind.name.lower()}) does not match its checksum", self._offset)
        frame = Frame(kind, payload, self._offset)
        if kind is not FrameKind.END:
            self._digest.update(self._buffer[: FRAME.size + length])
            self._num_frames += 1
        self._advance(FRAME.size + length)
        return frame

    def _kind(self, number: int) -> FrameKind:
        try:
            return FrameKind(number)
        except ValueError as error:
            raise damaged(f"frame {self._num_frames} is of no known kind ({number})", self._offset) from error

    def _take_end(self, frame: Frame) -> None:
        try:
            end = _END.decode(frame.payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise damaged(f"its end cannot be read ({error})", frame.offset) from error
        if end.num_frames != self._num_frames or end.digest != self.digest.hex():
            raise damaged("its end belongs to another file", frame.offset)
        self.end = end

    def _advance(self, length: int) -> None:
        del self._buffer[:length]
        self._offset += length
