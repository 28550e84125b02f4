"""Content keys of blocks: the same tokens under the same model have the same key on every machine.

    root  = BLAKE3(fingerprint fields, salt)          who may share, and with which model
    key 0 = BLAKE3(root  + tokens of block 0)
    key 1 = BLAKE3(key 0 + tokens of block 1)         so a key names the whole prefix up to the end of its block
    tail  = BLAKE3(key 1 + the tokens of a half-full block)

A half-full block's message is shorter than a full one's, so the two can never have one key. Fields are length-prefixed
and roots have a derivation context of their own, so no choice of names or salts makes two roots meet.
"""

from __future__ import annotations

import dataclasses

from blake3 import blake3

from .token_key import TOKEN_BYTES

KEY_BYTES = 32

_ROOT_CONTEXT = "sessile 2026-11 prefix cache root"
_FINGERPRINT_CONTEXT = "sessile 2026-11 kv fingerprint"


@dataclasses.dataclass(frozen=True, slots=True)
class KVFingerprint:
    """All that the bytes of a block depend on, besides its tokens. Blocks of another fingerprint are never read.

    ``weights`` is the hash of model weights and config; ``layout`` the name of the order of bytes inside a block;
    ``rope`` the positional encoding with its scaling; ``adapter`` the hash of a LoRA adapter, empty for none.
    """

    weights: str
    dtype: str
    layout: str
    block_size: int  # tokens
    block_bytes: int
    rope: str
    adapter: str = ""

    def digest(self) -> bytes:
        """32 bytes; the name of a folder or a namespace that holds blocks of this fingerprint."""
        values = [self.weights, self.dtype, self.layout, str(self.block_size), str(self.block_bytes)]
        return blake3(_joined([*values, self.rope, self.adapter]), derive_key_context=_FINGERPRINT_CONTEXT).digest()


class BlockKeys:
    """Makes the keys of the blocks of one model. A pure function of its arguments; safe from any thread."""

    def __init__(self, fingerprint: KVFingerprint) -> None:
        self.fingerprint = fingerprint
        self._digest = fingerprint.digest().hex()
        self._block_bytes = fingerprint.block_size * TOKEN_BYTES

    def root(self, salt: str) -> bytes:
        """What the first block of a sequence hangs on. Sequences of different salts share no key."""
        return blake3(_joined([self._digest, salt]), derive_key_context=_ROOT_CONTEXT).digest()

    def chain(self, parent: bytes, key: bytes | bytearray | memoryview) -> list[bytes]:
        """The keys of the whole blocks that ``key`` fills after ``parent``; what remains of it is ignored.

        ``parent``: a root, or the key of the whole block before. ``key``: packed tokens (``token_key``). A longer
        sequence extends the chain of a shorter one: only new blocks are hashed.
        """
        size = self._block_bytes
        tokens = bytes(key)
        keys: list[bytes] = []
        for start in range(0, len(tokens) - size + 1, size):
            parent = blake3(parent + tokens[start : start + size]).digest()
            keys.append(parent)
        return keys

    def tail(self, parent: bytes, key: bytes | bytearray | memoryview) -> bytes:
        """The key of the block after ``parent`` that holds only the tokens of ``key``.

        Raises:
            ValueError: ``key`` is empty or fills the block.
        """
        if not 0 < len(key) < self._block_bytes:
            raise ValueError(
                f"a tail has 1 to {self.fingerprint.block_size - 1} tokens, not {len(key) / TOKEN_BYTES:g}"
            )
        return blake3(parent + bytes(key)).digest()


def _joined(fields: list[str]) -> bytes:
    """Fields such that different lists give different bytes."""
    encoded = [field.encode() for field in fields]
    return b"".join(len(field).to_bytes(8, "little") + field for field in encoded)
