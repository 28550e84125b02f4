"""Signs an exported file anew: for another server's key, or for another tenant."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..errors import RequestError
from .format import ExportHeader, FrameKind, damaged
from .reader import FrameReader
from .signature import ExportKey
from .writer import FileWriter

_PIECE = 2**20


def resign(source: Path, target: Path, key: ExportKey, tenant: str | None) -> ExportHeader:
    """Write ``source`` to ``target``, signed with ``key``; ``tenant`` None keeps the file's own. Returns its header.

    ``target`` is there whole or not at all.

    Raises:
        RequestError: the source is damaged.
        OSError: a file cannot be read or written.
    """
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        with source.open("rb") as original, unfinished.open("wb") as copy:
            reader, writer = FrameReader(), FileWriter()
            header: ExportHeader | None = None
            while piece := original.read(_PIECE):
                for frame in reader.feed(piece):
                    if frame.kind is FrameKind.HEADER:
                        header = _changed(frame.payload, tenant, frame.offset)
                        copy.write(writer.header(header))
                    else:
                        copy.write(writer.copy(frame.kind, frame.payload))
            reader.close()
            if header is None:
                raise damaged("it has no header", 0)
            copy.write(writer.end(key))
            copy.flush()
            os.fsync(copy.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return header


def _changed(payload: bytes, tenant: str | None, offset: int) -> ExportHeader:
    try:
        header = msgspec.json.decode(payload, type=ExportHeader)
    except (msgspec.DecodeError, RecursionError) as error:
        raise damaged(f"its header cannot be read ({error})", offset, "file.header") from error
    if tenant is not None and not tenant.isprintable():
        raise RequestError("the tenant is not printable", field="tenant")
    return header if tenant is None else msgspec.structs.replace(header, tenant=tenant)
