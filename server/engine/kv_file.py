"""A file that holds the KV of a path, so that another machine can go on with it.

    8s magic, u32 blocks, u32 length of the description, description (JSON), u64 xxh3 of these
    then a block after the other: u32 tokens, u64 xxh3 of its bytes, 32s key, its bytes

All little endian. The key is the content key of the block's tokens and all before them, under no salt: it ties the
bytes to the tokens of the session's log, whatever tenant reads it. The last block may be half full. Files of other
weights or of another layout are refused: their bytes mean something else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from xxhash import xxh3_64_intdigest

from ...sessions.cache.keys import BlockKeys, KVFingerprint
from ...sessions.cache.tiers import Block
from ...sessions.cache.token_key import TOKEN_BYTES
from ...sessions.errors import RequestError

_MAGIC = b"SESSKV01"
_COUNTS = struct.Struct("<II")
_CHECKSUM = struct.Struct("<Q")
_BLOCK = struct.Struct("<IQ32s")
_MOST_DESCRIPTION_BYTES = 1 << 16


class _Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    weights: str
    dtype: str
    layout: str
    block_size: int
    block_bytes: int
    rope: str
    adapter: str


@dataclasses.dataclass(frozen=True, slots=True)
class KVBlock:
    """``num_tokens`` tokens, less than a block's at the path's end only."""

    num_tokens: int
    block: Block


def path_keys(fingerprint: KVFingerprint, key: bytes) -> list[tuple[bytes, int]]:
    """The key, under no salt, and the number of tokens of each block of the path ``key``."""
    keys, size = BlockKeys(fingerprint), fingerprint.block_size
    root = keys.root("")
    whole = keys.chain(root, key)
    rest = key[len(whole) * size * TOKEN_BYTES :]
    tail = [(keys.tail(whole[-1] if whole else root, rest), len(rest) // TOKEN_BYTES)] if rest else []
    return [*((each, size) for each in whole), *tail]


def write_kv_file(
    path: Path, fingerprint: KVFingerprint, keys: list[tuple[bytes, int]], blocks: Iterable[Block]
) -> int:
    """Write ``blocks``, one for each of the first ``keys``; returns the file's bytes. It is there whole, or not at all.

    Raises:
        RequestError: the file exists, or cannot be written.
    """
    if path.exists():
        raise RequestError(f"{path} exists", field="file", remedy="name a file that does not")
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("xb") as file:
            _write(file, fingerprint, keys, blocks)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        return path.stat().st_size
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise RequestError(
            f"{path} cannot be written: {error.strerror}", field="file", remedy="name a place with room for it"
        ) from error


def read_kv_file(path: Path, fingerprint: KVFingerprint, key: bytes) -> Iterator[KVBlock]:
    """The blocks of the file, as far as they are those of the path of the packed tokens ``key``.

    A file of a longer path, or of one that goes on otherwise, gives what both have in common.

    Raises:
        RequestError: the file is no such file, of another model or layout, half written, or a block is damaged.
    """
    try:
        with path.open("rb") as file:
            num_blocks = _read_head(file, path, fingerprint)
            keys = BlockKeys(fingerprint)
            parent = keys.root("")
            for index in range(num_blocks):
                stored, block = _read_block(file, path, index, fingerprint.block_bytes)
                _check_tokens(block.num_tokens, index, num_blocks, fingerprint.block_size, path)
                start = index * fingerprint.block_size * TOKEN_BYTES
                tokens = key[start : start + block.num_tokens * TOKEN_BYTES]
                if len(tokens) < block.num_tokens * TOKEN_BYTES or _key_of(keys, parent, tokens) != stored:
                    return
                yield block
                parent = stored
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", field="file") from error


def _write(file: BinaryIO, fingerprint: KVFingerprint, keys: list[tuple[bytes, int]], blocks: Iterable[Block]) -> None:
    file.write(_head(fingerprint, len(keys)))
    count = 0
    for (key, num_tokens), block in zip(keys, blocks, strict=False):
        file.write(_BLOCK.pack(num_tokens, xxh3_64_intdigest(block.data), key))
        file.write(block.data)
        count += 1
    if count < len(keys):  # what was there a moment ago is gone
        file.seek(0)
        file.write(_head(fingerprint, count))


def _head(fingerprint: KVFingerprint, num_blocks: int) -> bytes:
    description = msgspec.json.encode(_Description(**dataclasses.asdict(fingerprint)))
    head = _MAGIC + _COUNTS.pack(num_blocks, len(description)) + description
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head))


def _read_head(file: BinaryIO, path: Path, fingerprint: KVFingerprint) -> int:
    """How many blocks follow, all of ``fingerprint``."""
    start = file.read(len(_MAGIC) + _COUNTS.size)
    if len(start) < len(_MAGIC) + _COUNTS.size or not start.startswith(_MAGIC):
        raise RequestError(f"{path} holds no KV", field="file", remedy="name a file that an export wrote")
    num_blocks, length = _COUNTS.unpack_from(start, len(_MAGIC))
    rest = file.read(min(length, _MOST_DESCRIPTION_BYTES) + _CHECKSUM.size)
    description, checksum = rest[: -_CHECKSUM.size], rest[-_CHECKSUM.size :]
    if len(description) != length or checksum != _CHECKSUM.pack(xxh3_64_intdigest(start + description)):
        raise RequestError(f"the head of {path} is damaged", field="file", remedy="export it again")
    try:
        theirs = msgspec.json.decode(description, type=_Description)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            f"the head of {path} cannot be read: {error}", field="file", remedy="export it again"
        ) from error
    for name in theirs.__struct_fields__:
        if getattr(theirs, name) != getattr(fingerprint, name):
            raise RequestError(
                f"{path} holds KV with {name} {getattr(theirs, name)}, this server has {getattr(fingerprint, name)}",
                field="file",
                remedy="import the log alone; its tokens are computed again",
            )
    return int(num_blocks)


def _check_tokens(num_tokens: int, index: int, num_blocks: int, block_size: int, path: Path) -> None:
    """A block is full, but for the last one."""
    least = 1 if index + 1 == num_blocks else block_size
    if not least <= num_tokens <= block_size:
        raise RequestError(
            f"block {index} of {path} claims {num_tokens} of {block_size} tokens",
            field="file",
            remedy="export it again",
        )


def _key_of(keys: BlockKeys, parent: bytes, tokens: bytes) -> bytes:
    """Of the block of ``tokens`` behind ``parent``, half full or not."""
    whole = keys.chain(parent, tokens)
    return whole[0] if whole else keys.tail(parent, tokens)


def _read_block(file: BinaryIO, path: Path, index: int, block_bytes: int) -> tuple[bytes, KVBlock]:
    """Block ``index`` and its key."""
    start = file.read(_BLOCK.size)
    content = file.read(block_bytes)
    if len(start) < _BLOCK.size or len(content) < block_bytes:
        raise RequestError(f"{path} ends inside block {index}", field="file", remedy="export it again")
    num_tokens, checksum, key = _BLOCK.unpack(start)
    if xxh3_64_intdigest(content) != checksum:
        raise RequestError(f"block {index} of {path} is damaged", field="file", remedy="export it again")
    return key, KVBlock(num_tokens, np.frombuffer(content, dtype=np.uint8))
