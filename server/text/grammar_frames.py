"""What the front and the process that compiles grammars say to each other: a length of four bytes, then msgpack."""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from .grammar_config import GrammarConfig
from .grammar_vocabulary import GrammarVocabulary

_FRAME = struct.Struct(">I")


class CheckSetup(msgspec.Struct, frozen=True):
    """What grammars are compiled for."""

    vocabulary: GrammarVocabulary
    config: GrammarConfig


class Verdict(msgspec.Struct, frozen=True):
    """``error`` empty: the grammar can be used."""

    error: str = ""


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None at the end of the stream."""
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    (size,) = _FRAME.unpack(head)
    body = stream.read(size)
    return body if len(body) == size else None


def frame(message: msgspec.Struct) -> bytes:
    """A message with its length."""
    body = msgspec.msgpack.encode(message)
    return _FRAME.pack(len(body)) + body
