"""What turns said, in a file, so that it can be guessed from after a restart.

    header  magic and version, 8 bytes; the fingerprint of the model, 32 bytes
    record  length of the rest (u32), its xxh3 (u64), the rest: msgpack of (salt, schema, token ids as bytes)

Records are only appended, one at the end of each turn, without waiting for the disk: a crash may cost the last ones. A
record that is cut off at the end of the file is cut away; any other damage makes the file start anew, since guesses are
not worth a doubt. A file that has grown to ``most_bytes`` is written anew from what is still remembered.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

logger = logging.getLogger(__name__)

_MAGIC = b"SSLDRF01"
_HEADER_BYTES = len(_MAGIC) + 32
_RECORD = struct.Struct("<IQ")
_MOST_RECORD_BYTES = 2**26


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a turn said: the token ids are little-endian int32."""

    salt: str
    schema: str
    token_bytes: bytes

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """[n]"""
        return np.frombuffer(self.token_bytes, dtype="<i4").astype(np.int32)


class _Damaged(Exception):
    """The file is not what was written."""


class OutputLog:
    """Alone owns the file. Whatever goes wrong with it is logged and counted, and nothing else happens: ``num_damaged``
    files were thrown away, ``num_failed`` writes did not succeed."""

    def __init__(self, path: Path, fingerprint: bytes, most_bytes: int) -> None:
        """``fingerprint`` [32]: of what the token ids mean."""
        self._path = path
        self._header = _MAGIC + fingerprint
        self._most_bytes = most_bytes
        self._file: int | None = None
        self._size = 0
        self.num_damaged = 0
        self.num_failed = 0

    @property
    def is_full(self) -> bool:
        """It should be written anew."""
        return self._size > self._most_bytes

    def read(self) -> list[Said]:
        """All that is in the file, the oldest first, and open it for more. A file of another model is empty."""
        said: list[Said] = []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            content = self._path.read_bytes() if self._path.exists() else b""
            if content[:_HEADER_BYTES] == self._header:
                self._size = _HEADER_BYTES
                for record, end in _records(content):
                    said.append(record)
                    self._size = end
            elif content and content[: len(_MAGIC)] != _MAGIC:
                raise _Damaged("it does not begin as it should")
        except _Damaged as error:
            logger.warning("%s is damaged and starts anew: %s", self._path, error)
            self.num_damaged += 1
            self._size, said = 0, []
        except OSError as error:
            self._give_up("read", error)
            return []
        self._open()
        return said

    def append(self, said: Said) -> None:
        """Write what a turn said."""
        if self._file is not None:
            try:
                self._write(_packed(said))
            except OSError as error:
                self._give_up("write", error)

    def rewrite(self, remembered: Iterable[Said]) -> None:
        """Replace all that is in the file by ``remembered``."""
        if self._file is None:
            return
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(self._header + b"".join(_packed(said) for said in remembered))
            fresh.replace(self._path)
            os.close(self._file)
            self._size = self._path.stat().st_size
        except OSError as error:
            self._give_up("write", error)
            return
        self._open()

    def close(self) -> None:
        """Nothing else is called afterwards."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, 0, os.SEEK_END)
            if not self._size:
                self._write(self._header)
        except OSError as error:
            self._give_up("open", error)

    def _write(self, content: bytes) -> None:
        assert self._file is not None
        if os.write(self._file, content) != len(content):
            raise OSError("the disk took a part only")
        self._size += len(content)

    def _give_up(self, what: str, error: OSError) -> None:
        logger.warning("cannot %s %s, past outputs will not outlive this process: %s", what, self._path, error)
        self.num_failed += 1
        self._file = None


def _packed(said: Said) -> bytes:
    content = msgspec.msgpack.encode(said)
    return _RECORD.pack(len(content), xxhash.xxh3_64_intdigest(content)) + content


def _records(content: bytes) -> Iterator[tuple[Said, int]]:
    """Each record and where it ends; a last one that is cut off is left out.

    Raises:
        _Damaged: a record is not what was written.
    """
    decoder = msgspec.msgpack.Decoder(Said)
    at = _HEADER_BYTES
    while at + _RECORD.size <= len(content):
        length, checksum = _RECORD.unpack_from(content, at)
        end = at + _RECORD.size + length
        if length > _MOST_RECORD_BYTES:
            raise _Damaged(f"a record at {at} is too long")
        if end > len(content):
            return
        body = content[at + _RECORD.size : end]
        if xxhash.xxh3_64_intdigest(body) != checksum:
            raise _Damaged(f"the checksum of the record at {at} is wrong")
        try:
            yield decoder.decode(body), end
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Damaged(f"the record at {at} cannot be read") from error
        at = end
