"""The format's words: magic, frames, and what stands in them."""

from __future__ import annotations

import enum
import struct

import msgspec
from blake3 import blake3

from ..errors import RequestError
from ..keeping import PersistencePolicy
from ..messages import Message, Tool
from ..session import EntryKind, ModelIdentity

MAGIC = b"sessile session\n"
FORMAT_VERSION = 1
FRAME = struct.Struct("<B3xI16s")  # kind, length of the payload, checksum
CHECKSUM_BYTES = 16
_CHECKSUM_CONTEXT = "sessile 2026-11 export frame"


class FrameKind(enum.IntEnum):
    """What a frame holds."""

    HEADER = 1
    ENTRY = 2
    KV = 3
    END = 4


MAX_PAYLOAD = {
    FrameKind.HEADER: 16 * 2**20,
    FrameKind.ENTRY: 64 * 2**20,
    FrameKind.KV: 2**20,
    FrameKind.END: 4096,
}
KV_PIECE = 2**20


class ExportHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says about itself. ``kv_bytes`` 0: there is no KV; ``kv_tokens``: of the log, the first so many."""

    format: int = FORMAT_VERSION
    created_at: float
    tenant: str
    session_id: str
    version: int
    model: ModelIdentity
    system: str | None
    tools: tuple[Tool, ...]
    persistence: PersistencePolicy | None
    num_tokens: int
    num_turns: int
    num_entries: int
    kv_bytes: int = 0
    kv_tokens: int = 0


class ExportedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log. ``token_ids``: little-endian int32. ``messages``: JSON, as the store keeps them."""

    kind: EntryKind
    token_ids: bytes
    messages: tuple[Message, ...] = ()


class ExportEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The file's end: how many frames stand before it, the BLAKE3 of all bytes before it, and the digest's signature
    (both hexadecimal)."""

    num_frames: int
    digest: str
    signature: str


def frame_checksum(index: int, kind: int, payload: bytes) -> bytes:
    """The checksum of the ``index``-th frame (from 0)."""
    hasher = blake3(struct.pack("<QB", index, kind), derive_key_context=_CHECKSUM_CONTEXT)
    hasher.update(payload)
    return hasher.digest(length=CHECKSUM_BYTES)


def damaged(what: str, offset: int, field: str = "file") -> RequestError:
    """The error for a file that is not what an export wrote; ``offset`` is the byte at which that is seen."""
    return RequestError(
        f"the file is not usable: {what}, at byte {offset}", field=field, remedy="export the session again"
    )
