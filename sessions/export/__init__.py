"""Sessions as files: what an export writes and an import reads. Never executed, never unpickled.

::

    file   = magic (16 bytes), frame, frame, …
    frame  = kind (1 byte), 3 zero bytes, payload's length (4 bytes, little-endian), checksum (16 bytes), payload

    1 header      once, first: JSON (``ExportHeader``): the format's version, the tenant, the model, what follows
    2 entry       one for each entry of the log, in its order: MessagePack (``ExportedEntry``)
    3 kv          the engine's file of KV, in pieces; the engine checks what is in it
    4 end         once, last: JSON (``ExportEnd``): the digest of all that stands before it, and its signature

A frame's checksum is the BLAKE3 of its place among the frames, its kind and its payload, so that no frame can be
changed, moved, left out or doubled without being found; the digest covers the whole file, and the signature binds it,
and with it the tenant in the header, to a server's key.
"""

from __future__ import annotations

from .assembler import ExportedSession, FileAssembler
from .format import FORMAT_VERSION, ExportedEntry, ExportHeader
from .resign import resign
from .signature import ExportKey, load_key
from .writer import FileWriter

__all__ = [
    "FORMAT_VERSION",
    "ExportHeader",
    "ExportKey",
    "ExportedEntry",
    "ExportedSession",
    "FileAssembler",
    "FileWriter",
    "load_key",
    "resign",
]
