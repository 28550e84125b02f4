"""The key that binds exported files to this server's tenants."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from blake3 import blake3

from ..errors import ConfigError

KEY_NAME = "export.key"
_KEY_BYTES = 32
_CONTEXT = "sessile 2026-11 export signature"


class ExportKey:
    """Signs files and knows its signatures again. Servers with one key take each other's files."""

    def __init__(self, secret: bytes) -> None:
        self._key = blake3(secret, derive_key_context=_CONTEXT).digest()

    def sign(self, digest: bytes) -> bytes:
        """The keyed BLAKE3 of a file's digest."""
        return blake3(digest, key=self._key).digest()

    def knows(self, digest: bytes, signature: str) -> bool:
        """Whether ``signature`` (hexadecimal) was made with this key."""
        return hmac.compare_digest(self.sign(digest).hex(), signature.lower().encode("ascii", "replace").decode())


def load_key(path: Path) -> ExportKey:
    """The key in a file (its first 64 hexadecimal digits), which is made if it is not there.

    Raises:
        ConfigError: the file cannot be read or made, or holds no key.
    """
    try:
        text = _read_or_make(path)
    except OSError as error:
        raise ConfigError(
            f"the key for exported sessions {path} cannot be read: {error.strerror}",
            field="sessions.export_key",
            remedy="make it readable for this user, or name another file",
        ) from error
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != _KEY_BYTES:
        raise ConfigError(
            f"{path} holds no key for exported sessions",
            field="sessions.export_key",
            remedy=f"it must have {2 * _KEY_BYTES} hexadecimal digits; without the file, a new key is made",
        )
    return ExportKey(secret)


def _read_or_make(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        text = secrets.token_hex(_KEY_BYTES)
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        return text
