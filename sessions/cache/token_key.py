"""Token ids as byte strings that compare like the token sequences.

Four bytes a token, most significant first: so the order of two keys as bytes is the order of their token sequences,
slices are token ranges, and comparing long prefixes is one ``memcmp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TOKEN_BYTES = 4


def pack_tokens(token_ids: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """The key of ``token_ids``: ``4 * len(token_ids)`` bytes."""
    return np.asarray(token_ids, dtype=np.int64).astype(">u4").tobytes()


def unpack_tokens(key: bytes | bytearray) -> list[int]:
    """The token ids of ``key``."""
    return np.frombuffer(bytes(key), dtype=">u4").astype(np.int64).tolist()  # type: ignore[no-any-return]


def common_prefix_tokens(left: bytes | bytearray | memoryview, right: bytes | bytearray | memoryview) -> int:
    """How many leading tokens two keys share."""
    length = min(len(left), len(right)) // TOKEN_BYTES
    if length == 0:
        return 0
    a = np.frombuffer(left, dtype=np.uint32, count=length)
    b = np.frombuffer(right, dtype=np.uint32, count=length)
    differs = a != b
    first = int(differs.argmax())
    return first if differs[first] else length
