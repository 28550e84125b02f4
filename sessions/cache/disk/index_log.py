"""The index log: which key's bytes lie in which slot, as a list of changes with a checksum on each.

    header   8s magic, u32 version, u32 slots a segment, u64 block bytes, 32s fingerprint, u64 seed, u64 xxh3 of these
    record   u32 kind, u32 slot, u64 xxh3 of the block, 32s key, u64 tenant, u64 xxh3 of these with the log's seed as
             seed

All little endian. Records have one size, so a damaged one does not hide those behind it. The seed is random: what an
older log left on the disk never passes for a record of this one. A later record for a slot or a key replaces earlier
ones. Since the last block's bytes were written before its record, and are checked against it when read, a record may
be lost or survive its block without harm.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import secrets
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

_HEADER = struct.Struct("<8sIIQ32sQQ")
_RECORD = struct.Struct("<IIQ32sQQ")
_RECORD_DTYPE = np.dtype(
    [("kind", "<u4"), ("slot", "<u4"), ("checksum", "<u8"), ("key", "V32"), ("tenant", "<u8"), ("own", "<u8")]
)
_CHECKED_BYTES = _RECORD.size - 8
_MAGIC = b"SESSILKV"
_VERSION = 2

HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size


class IndexDamaged(Exception):
    """The header is not one of this program's, or of other blocks than expected: nothing in the folder can be used."""


class RecordKind(enum.IntEnum):
    """What a record says."""

    STORED = 0x53544F52
    DROPPED = 0x44524F50


class Record(NamedTuple):
    """``key``'s bytes, with checksum ``checksum``, lie in ``slot`` from now on; or no longer do. ``tenant``: whose
    quota they count against (``tenant_number``); 0: nobody's."""

    kind: RecordKind
    slot: int
    checksum: int
    key: bytes
    tenant: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What all blocks of a folder have in common."""

    fingerprint: bytes  # 32 bytes
    block_bytes: int
    slots_per_segment: int


class IndexLog:
    """An open log, positioned at its end. One thread appends."""

    def __init__(self, descriptor: int, shape: Shape, seed: int, num_records: int) -> None:
        self._descriptor = descriptor
        self._seed = seed
        self._num_records = num_records
        self.shape = shape

    @classmethod
    def create(cls, path: Path, shape: Shape, records: Iterable[Record]) -> IndexLog:
        """Put a log that holds ``records`` in the place of ``path``, all at once.

        Raises:
            OSError: what was there before is still there.
        """
        seed = secrets.randbits(64)
        body = b"".join(_encode(record, seed) for record in records)
        fields = (_MAGIC, _VERSION, shape.slots_per_segment, shape.block_bytes, shape.fingerprint, seed)
        head = _HEADER.pack(*fields, 0)[:-8]
        new = path.with_suffix(".new")
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_fully(descriptor, head + struct.pack("<Q", xxh3_64_intdigest(head)) + body, 0)
            os.fdatasync(descriptor)
            os.replace(new, path)
        except OSError:
            os.close(descriptor)
            new.unlink(missing_ok=True)
            raise
        return cls(descriptor, shape, seed, len(body) // RECORD_BYTES)

    @classmethod
    def open(cls, path: Path) -> tuple[IndexLog, list[Record], int]:
        """The log, its good records in order, and how many were damaged (a torn last one included).

        Raises:
            FileNotFoundError: there is none.
            IndexDamaged: its header is no good.
            OSError: it cannot be read.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            content = _read_all(descriptor)
            shape, seed = _decode_header(content)
            records, damaged = _decode_records(content, seed)
        except (OSError, IndexDamaged):
            os.close(descriptor)
            raise
        whole, torn = divmod(len(content) - HEADER_BYTES, RECORD_BYTES)
        return cls(descriptor, shape, seed, whole), records, damaged + (torn > 0)

    @property
    def num_records(self) -> int:
        """Records in the file, replaced ones included."""
        return self._num_records

    @property
    def is_removed(self) -> bool:
        """Whether somebody deleted the file while it is open."""
        return os.fstat(self._descriptor).st_nlink == 0

    def append(self, records: list[Record]) -> None:
        """Add ``records``.

        Raises:
            OSError: none counts; what was written of them is written over by the next append.
        """
        body = b"".join(_encode(record, self._seed) for record in records)
        write_fully(self._descriptor, body, HEADER_BYTES + self._num_records * RECORD_BYTES)
        self._num_records += len(records)

    def sync(self) -> None:
        """Return when the disk has all records. Raises: OSError."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def tenant_number(tenant: str) -> int:
    """A tenant in a record: a hash of its salt; 0 for none."""
    return xxh3_64_intdigest(tenant.encode()) or 1 if tenant else 0


def write_fully(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    """``pwrite`` all of ``content``. Raises: OSError."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def _encode(record: Record, seed: int) -> bytes:
    body = _RECORD.pack(record.kind, record.slot, record.checksum, record.key, record.tenant, 0)[:_CHECKED_BYTES]
    return body + struct.pack("<Q", xxh3_64_intdigest(body, seed))


def _read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    offset = 0
    while offset < size and (part := os.pread(descriptor, size - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _decode_header(content: bytes) -> tuple[Shape, int]:
    if len(content) < HEADER_BYTES:
        raise IndexDamaged("the index log has no whole header")
    magic, version, slots_per_segment, block_bytes, fingerprint, seed, checksum = _HEADER.unpack_from(content)
    if magic != _MAGIC or checksum != xxh3_64_intdigest(content[: HEADER_BYTES - 8]):
        raise IndexDamaged("the header of the index log is damaged")
    if version != _VERSION:
        raise IndexDamaged(f"the index log has version {version}, this program reads version {_VERSION}")
    return Shape(fingerprint, block_bytes, slots_per_segment), seed


def _decode_records(content: bytes, seed: int) -> tuple[list[Record], int]:
    count = (len(content) - HEADER_BYTES) // RECORD_BYTES
    fields = np.frombuffer(content, dtype=_RECORD_DTYPE, count=count, offset=HEADER_BYTES)
    kinds, slots = fields["kind"].tolist(), fields["slot"].tolist()
    checksums, tenants, own = fields["checksum"].tolist(), fields["tenant"].tolist(), fields["own"].tolist()
    known = {kind.value: kind for kind in RecordKind}
    records: list[Record] = []
    view = memoryview(content)
    for i in range(count):
        start = HEADER_BYTES + i * RECORD_BYTES
        kind = known.get(kinds[i])
        if kind is not None and xxh3_64_intdigest(view[start : start + _CHECKED_BYTES], seed) == own[i]:
            records.append(Record(kind, slots[i], checksums[i], content[start + 16 : start + 48], tenants[i]))
    return records, count - len(records)
