"""Files that the server writes and reads again: the disk tier, exported sessions, KV files, keys, what turns said.

Each is tried as it comes, where checksums find almost everything, and sealed: right checksums around wrong content.
"""

from __future__ import annotations

import contextlib
import random
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import json_changes
import msgspec
import numpy as np
import xxhash
from fuzzing import Feed, Target

from sessile.server.engine import kept_calibration, kv_file
from sessile.server.engine.speculation.output_log import OutputLog, Said
from sessile.server.identity.api_key import Scope, new_key
from sessile.server.identity.key_file import KeyFile
from sessile.sessions.cache.disk import DiskConfig, DiskTier
from sessile.sessions.cache.disk.index_log import HEADER_BYTES, RECORD_BYTES
from sessile.sessions.cache.keys import KVFingerprint
from sessile.sessions.cache.tiers import Entry, LoadOutcome
from sessile.sessions.cache.token_key import pack_tokens
from sessile.sessions.errors import ConfigError, RequestError
from sessile.sessions.export import ExportedEntry, ExportHeader, ExportKey, FileAssembler, FileWriter
from sessile.sessions.export.format import FRAME, MAGIC, FrameKind
from sessile.sessions.messages import Message, Role
from sessile.sessions.session import EntryKind, ModelIdentity
from sessile.sessions.store.rows import encode_token_ids

BLOCK_BYTES, SLOTS = 64, 8
FINGERPRINT = KVFingerprint("w" * 64, "bfloat16", "group16-pair2", 16, BLOCK_BYTES, "neox")
TOKENS = list(range(40))  # two blocks and a half
KEYS = [bytes([n]) * 32 for n in range(4)]


def _block(number: int) -> Any:
    return np.full(BLOCK_BYTES, number, np.uint8)


# -- the disk tier ----------------------------------------------------------------------------------------------------


def _open_tier(folder: Path) -> DiskTier:
    size = BLOCK_BYTES
    config = DiskConfig(
        path=str(folder), quota_bytes=SLOTS * size, write_queue_bytes=SLOTS * size, segment_bytes=4 * size
    )
    return DiskTier(config, FINGERPRINT)


def _fill(folder: Path) -> None:
    tier = _open_tier(folder)
    tier.store([Entry(key, (_block(number),)) for number, key in enumerate(KEYS)])
    tier.sync()
    tier.drop(KEYS[3:])
    tier.store([Entry(KEYS[3], (_block(3),))])
    tier.sync()
    tier.close()


def _disk_feed(seal: Any) -> Any:
    """Opens a folder whose index is the input; a hit must be the right block."""

    @contextlib.contextmanager
    def opened() -> Iterator[Feed]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _fill(folder)
            index = next(folder.glob("*/index.log"))
            segments = {path: path.read_bytes() for path in index.parent.glob("segment-*")}

            def feed(content: bytes) -> None:
                index.write_bytes(seal(content))
                for path, held in segments.items():
                    path.write_bytes(held)
                tier = _open_tier(folder)
                try:
                    for number, key in enumerate(KEYS):
                        block = _block(255)
                        if tier.load([Entry(key, (block,))], time.monotonic() + 60) == [LoadOutcome.HIT]:
                            assert (block == _block(number)).all(), f"block {number} is another's"
                    tier.store([Entry(b"n" * 32, (_block(9),))])
                    tier.sync()
                    tier.check_integrity()
                finally:
                    tier.close()

            yield feed

    return opened


def _disk_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        _fill(Path(name))
        return [next(Path(name).glob("*/index.log")).read_bytes()]


def _sealed_index(content: bytes) -> bytes:
    """Header and records with the checksums that belong to them. What a record says of its block stays as it is."""
    head, body = content[: HEADER_BYTES - 8].ljust(HEADER_BYTES - 8, b"\0"), content[HEADER_BYTES:]
    head = b"SESSILKV" + struct.pack("<I", 1) + head[12:]
    seed = struct.unpack_from("<Q", head, 56)[0]
    sealed = [head, struct.pack("<Q", xxhash.xxh3_64_intdigest(head))]
    for start in range(0, len(body), RECORD_BYTES):
        record = body[start : start + RECORD_BYTES - 8]
        sealed += [record, struct.pack("<Q", xxhash.xxh3_64_intdigest(record, seed))]
    return b"".join(sealed)


# -- files of KV ------------------------------------------------------------------------------------------------------


def _kv_feed(seal: Any) -> Any:
    @contextlib.contextmanager
    def opened() -> Iterator[Feed]:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "kv"
            key = pack_tokens(TOKENS)

            def feed(content: bytes) -> None:
                path.write_bytes(seal(content))
                size, end = FINGERPRINT.block_size, False
                for block in kv_file.read_kv_file(path, FINGERPRINT, key):
                    assert not end, "a block stands behind the last one"
                    assert 1 <= block.num_tokens <= size and len(block.block) == BLOCK_BYTES
                    end = block.num_tokens < size

            yield feed

    return opened


def _kv_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "kv"
        keys = kv_file.path_keys(FINGERPRINT, pack_tokens(TOKENS))
        kv_file.write_kv_file(path, FINGERPRINT, keys, [_block(n) for n in range(len(keys))])
        return [path.read_bytes()]


def _sealed_kv(content: bytes) -> bytes:
    """Head and blocks with right checksums; the keys stay as they are."""
    blocks, length = struct.unpack_from("<II", content.ljust(16, b"\0"), 8)
    length = min(length, len(content))
    head = b"SESSKV01" + struct.pack("<II", blocks, length) + content[16 : 16 + length].ljust(length, b" ")
    body = content[24 + length :]
    sealed = [head, struct.pack("<Q", xxhash.xxh3_64_intdigest(head))]
    size = 44 + BLOCK_BYTES
    for start in range(0, len(body), size):
        block = body[start : start + size].ljust(size, b"\0")
        sealed.append(block[:4] + struct.pack("<Q", xxhash.xxh3_64_intdigest(block[44:])) + block[12:])
    return b"".join(sealed)


def _change_kv(content: bytes, rng: random.Random) -> bytes:
    """Tokens of a block, or the description, changed."""
    length = struct.unpack_from("<I", content.ljust(16, b"\0"), 12)[0]
    start = 24 + length
    if rng.random() < 0.5 and start < len(content):
        at = start + rng.randrange((len(content) - start) // (44 + BLOCK_BYTES) + 1) * (44 + BLOCK_BYTES)
        tokens = struct.pack("<I", rng.choice((0, 1, 8, 15, 16, 17, 24, 32, 40, 1 << 20, (1 << 32) - 1)))
        return content[:at] + tokens + content[at + 4 :]
    changed = json_changes.changed(content[16 : 16 + length], rng)
    return content[:12] + struct.pack("<I", len(changed)) + changed + content[16 + length :]


# -- exported sessions ------------------------------------------------------------------------------------------------

KEY = ExportKey(b"k" * 32)


def _whole_export() -> tuple[list[tuple[FrameKind, bytes]], bytes]:
    header = ExportHeader(
        created_at=1.0, tenant="a", session_id="ses_1", version=2, system="be good", persistence=None, num_tokens=5,
        model=ModelIdentity(name="m", model_fingerprint="f", tokenizer_fingerprint="t"), num_turns=1, num_entries=2,
        tools=({"type": "function", "function": {"name": "f"}},), kv_bytes=300, kv_tokens=5,
    )  # fmt: skip
    hi = Message(role=Role.USER, content="hi")
    entries = (
        ExportedEntry(kind=EntryKind.PROMPT, token_ids=encode_token_ids([1, 2, 3]), messages=(hi,)),
        ExportedEntry(kind=EntryKind.OUTPUT, token_ids=encode_token_ids([4, 5])),
    )
    frames = [(FrameKind.HEADER, msgspec.json.encode(header))]
    frames += [(FrameKind.ENTRY, msgspec.msgpack.encode(entry)) for entry in entries]
    frames += [(FrameKind.KV, bytes(200)), (FrameKind.KV, bytes(100))]
    writer = FileWriter()
    parts = [writer.header(header), *(writer.copy(kind, payload) for kind, payload in frames[1:]), writer.end(KEY)]
    return frames, b"".join(parts)


class _Count:
    def write(self, piece: bytes) -> None:
        """Takes any piece."""


@contextlib.contextmanager
def _export() -> Iterator[Feed]:
    def feed(content: bytes) -> None:
        assembler = FileAssembler(KEY, _Count(), lambda header: None)
        for start in range(0, len(content), 100):
            assembler.feed(content[start : start + 100])
        assembler.session()

    yield feed


@contextlib.contextmanager
def _export_frames() -> Iterator[Feed]:
    """The input is frames without their checksums: kind, length in two bytes, payload. The file is signed well."""
    header = msgspec.json.decode(_whole_export()[0][0][1], type=ExportHeader)

    def feed(content: bytes) -> None:
        writer, at = FileWriter(), 3
        parts: list[bytes] = [writer.header(header)[: len(MAGIC)]]
        writer = FileWriter()
        writer._digest.update(MAGIC)
        while at <= len(content):
            kind, length = content[at - 3] % 5, int.from_bytes(content[at - 2 : at], "little")
            parts.append(writer.copy(kind, content[at : at + length]))  # type: ignore[arg-type]
            at += length + 3
        parts.append(writer.end(KEY))
        assembler = FileAssembler(KEY, _Count(), lambda header: None)
        assembler.feed(b"".join(parts))
        assembler.session()

    yield feed


def _frames_seeds() -> list[bytes]:
    return [b"".join(_framed(kind, payload) for kind, payload in _whole_export()[0])]


def _framed(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + len(payload).to_bytes(2, "little") + payload


def _change_frame(content: bytes, rng: random.Random) -> bytes:
    """One frame's payload changed as what it is: JSON, MessagePack or bytes."""
    frames, at = [], 3
    while at <= len(content):
        length = int.from_bytes(content[at - 2 : at], "little")
        frames.append((content[at - 3], content[at : at + length]))
        at += length + 3
    if not frames:
        return content
    index = rng.randrange(len(frames))
    kind, payload = frames[index]
    match kind:
        case FrameKind.ENTRY:
            with contextlib.suppress(
                msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError, OverflowError
            ):
                entry = msgspec.msgpack.decode(payload)
                tokens = entry.pop("token_ids", b"")
                entry = json_changes.changed(msgspec.json.encode(entry), rng)
                payload = msgspec.msgpack.encode(
                    {**msgspec.json.decode(entry), "token_ids": tokens[: rng.randrange(13)]}
                )
        case FrameKind.HEADER | FrameKind.END:
            payload = json_changes.changed(payload, rng)
        case _:
            payload = payload[: rng.randrange(len(payload) + 1)]
    frames[index] = (rng.choice((kind, kind, kind, 1, 2, 3, 4)), payload[:65535])
    return b"".join(_framed(*frame) for frame in frames)


# -- small files ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _keys() -> Iterator[Feed]:
    with tempfile.TemporaryDirectory() as name:
        file = KeyFile(Path(name))

        def feed(content: bytes) -> None:
            file.path.write_bytes(content)
            file.read()

        yield feed


def _keys_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        file = KeyFile(Path(name))
        _, key = new_key("a", (Scope.INFER,), "ci", 1.0)
        file.change(lambda keys: [*keys, key])
        return [file.path.read_bytes()]


@contextlib.contextmanager
def _calibration() -> Iterator[Feed]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.json"

        def feed(content: bytes) -> None:
            path.write_bytes(content)
            kept = kept_calibration.newest(Path(name))
            if kept is not None:
                kept.break_even_tokens()

        yield feed


def _outputs(seal: Any) -> Any:
    @contextlib.contextmanager
    def opened() -> Iterator[Feed]:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "outputs"

            def feed(content: bytes) -> None:
                path.write_bytes(seal(content))
                log = OutputLog(path, b"f" * 32, 1 << 20)
                for said in log.read():
                    assert said.token_ids.ndim == 1
                log.append(Said("", "", b"\0" * 4))
                log.close()

            yield feed

    return opened


def _outputs_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "outputs"
        log = OutputLog(path, b"f" * 32, 1 << 20)
        log.read()
        for number in range(3):
            log.append(Said("salt", "s", bytes(4 * number)))
        log.close()
        return [path.read_bytes()]


def _sealed_outputs(content: bytes) -> bytes:
    body, sealed, at = content[40:], [b"SSLDRF01" + b"f" * 32], 12
    while at <= len(body):
        record = body[at : at + min(struct.unpack_from("<I", body, at - 12)[0], 200)]
        sealed.append(struct.pack("<IQ", len(record), xxhash.xxh3_64_intdigest(record)) + record)
        at += len(record) + 12
    return b"".join(sealed)


def _as_it_is(content: bytes) -> bytes:
    return content


TARGETS = (
    Target("disk-index", _disk_feed(_as_it_is), _disk_seeds, ()),
    Target("disk-index-sealed", _disk_feed(_sealed_index), _disk_seeds, ()),
    Target("kv-file", _kv_feed(_as_it_is), _kv_seeds, (RequestError,)),
    Target("kv-file-sealed", _kv_feed(_sealed_kv), _kv_seeds, (RequestError,), mutate=_change_kv),
    Target("export", _export, lambda: [_whole_export()[1]], (RequestError,)),
    Target("export-sealed", _export_frames, _frames_seeds, (RequestError,), mutate=_change_frame),
    Target("api-keys", _keys, _keys_seeds, (ConfigError,), mutate=json_changes.changed),
    Target("past-outputs", _outputs(_as_it_is), _outputs_seeds, ()),
    Target("past-outputs-sealed", _outputs(_sealed_outputs), _outputs_seeds, ()),
)
assert FRAME.size == 24  # what the frames' seeds are made for
