"""Puts a session together again from the frames of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ..errors import RequestError
from ..session import EntryKind, NewEntry
from ..store.rows import decode_token_ids
from .format import FORMAT_VERSION, ExportedEntry, ExportHeader, FrameKind, damaged
from .reader import Frame, FrameReader
from .signature import ExportKey

MAX_LOG_BYTES = 512 * 2**20  # of all entries together
_HEADER = msgspec.json.Decoder(ExportHeader)
_ENTRY = msgspec.msgpack.Decoder(ExportedEntry)


class _Format(msgspec.Struct, frozen=True):
    """What every version of the header has."""

    format: int


_FORMAT = msgspec.json.Decoder(_Format)


class KvSink(Protocol):
    """Takes the KV part of a file."""

    def write(self, piece: bytes, /) -> object: ...


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole and undamaged file says. ``digest`` (hexadecimal) names the file's content."""

    header: ExportHeader
    entries: tuple[NewEntry, ...]
    digest: str


class FileAssembler:
    """Feed it the file's bytes, then ask for the session. KV goes to ``kv`` as it comes.

    ``check_header`` sees the header before anything else is taken. All errors about the file are RequestErrors that say
    where it is wrong; ``key`` decides whose files are taken.
    """

    def __init__(self, key: ExportKey, kv: KvSink, check_header: Callable[[ExportHeader], None]) -> None:
        self._key = key
        self._kv = kv
        self._check_header = check_header
        self._reader = FrameReader()
        self._header: ExportHeader | None = None
        self._entries: list[NewEntry] = []
        self._log_bytes = 0
        self._kv_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the file."""
        for frame in self._reader.feed(piece):
            self._take(frame)

    def session(self) -> ExportedSession:
        """The session, after the last byte.

        Raises:
            RequestError: the file is not whole, is damaged, or was signed by another server.
        """
        end, digest = self._reader.close(), self._reader.digest
        header = self._header
        if header is None:
            raise damaged("it has no header", 0)
        self._require_counts(header)
        if not self._key.knows(digest, end.signature):
            raise RequestError(
                "the file was signed by another server",
                field="file.signature",
                remedy="sign it for this one with `sessile sessions sign`, or give both servers one export key",
            )
        return ExportedSession(header=header, entries=tuple(self._entries), digest=digest.hex())

    def _take(self, frame: Frame) -> None:
        if (frame.kind is FrameKind.HEADER) != (self._header is None):
            raise damaged("it must have one header, and first", frame.offset)
        match frame.kind:
            case FrameKind.HEADER:
                self._take_header(frame)
            case FrameKind.ENTRY:
                self._take_entry(frame)
            case FrameKind.KV:
                self._take_kv(frame)
            case FrameKind.END:
                raise AssertionError("the reader keeps the end")

    def _take_header(self, frame: Frame) -> None:
        try:
            version = _FORMAT.decode(frame.payload).format
            if version != FORMAT_VERSION:
                raise RequestError(
                    f"the file has format {version}, this server reads {FORMAT_VERSION}",
                    field="file.header.format",
                    remedy="export it with a server of this version, or import it into one of the file's",
                )
            header = _HEADER.decode(frame.payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise damaged(f"its header cannot be read ({error})", frame.offset, "file.header") from error
        self._check_header(header)
        self._header = header

    def _take_entry(self, frame: Frame) -> None:
        if self._kv_bytes:
            raise damaged("an entry stands behind the KV", frame.offset)
        field = f"file.entries[{len(self._entries)}]"
        self._log_bytes += len(frame.payload)
        assert self._header is not None
        if len(self._entries) >= self._header.num_entries or self._log_bytes > MAX_LOG_BYTES:
            raise damaged("it has more entries than its header says", frame.offset, field)
        try:
            entry = _ENTRY.decode(frame.payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise damaged(f"an entry cannot be read ({error})", frame.offset, field) from error
        if not entry.token_ids or len(entry.token_ids) % 4:
            raise damaged("an entry has no whole tokens", frame.offset, f"{field}.token_ids")
        token_ids = decode_token_ids(entry.token_ids)
        self._entries.append(NewEntry(kind=entry.kind, token_ids=token_ids, messages=entry.messages))

    def _take_kv(self, frame: Frame) -> None:
        assert self._header is not None
        self._kv_bytes += len(frame.payload)
        if self._kv_bytes > self._header.kv_bytes:
            raise damaged("it has more KV than its header says", frame.offset, "file.kv")
        self._kv.write(frame.payload)

    def _require_counts(self, header: ExportHeader) -> None:
        found = {
            "num_entries": len(self._entries),
            "num_tokens": sum(len(entry.token_ids) for entry in self._entries),
            "num_turns": sum(entry.kind is EntryKind.OUTPUT for entry in self._entries),
            "kv_bytes": self._kv_bytes,
        }
        for name, number in found.items():
            if getattr(header, name) != number:
                raise RequestError(
                    f"the file's header says {name} {getattr(header, name)}, there are {number}",
                    field=f"file.header.{name}",
                    remedy="export the session again",
                )
