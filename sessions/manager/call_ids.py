"""The ids of tool calls: unique, not to be guessed, and the same when a turn is run again for the same request."""

from __future__ import annotations

import hashlib
import secrets
import string
from collections.abc import Callable

from ...server.text.answer_format import ToolFormat

_LETTERS = string.ascii_letters + string.digits
_LENGTH = 24  # 142 bits
_MISTRAL_LENGTH = 9  # its templates refuse any other


def call_ids(tool_format: ToolFormat, *secret_words: str) -> Callable[[int], str]:
    """Makes the id of the call with a number.

    ``secret_words`` are what only the caller and the server know of the turn (the session's id and the request's);
    without any, the ids are drawn.
    """
    key = "\0".join(secret_words).encode() if secret_words else secrets.token_bytes(32)

    def call_id(index: int) -> str:
        digest = hashlib.blake2b(key + b"\0%d" % index, digest_size=32, person=b"tool call").digest()
        number, letters = int.from_bytes(digest, "little"), []
        for _ in range(_MISTRAL_LENGTH if tool_format is ToolFormat.MISTRAL else _LENGTH):
            number, letter = divmod(number, len(_LETTERS))
            letters.append(_LETTERS[letter])
        return ("" if tool_format is ToolFormat.MISTRAL else "call_") + "".join(letters)

    return call_id
