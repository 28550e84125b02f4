"""API keys: what is given out once, and what is kept of it."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets

import msgspec

PREFIX = "sk-sessile"
_SHAPE = re.compile(rf"{PREFIX}-([0-9a-f]{{12}})-([A-Za-z0-9_-]{{43}})")


class Scope(enum.StrEnum):
    """What a key is good for."""

    INFER = "infer"  # turns and sessions, of the key's own tenant
    ADMIN = "admin"  # everything, for any tenant
    METRICS = "metrics"  # metrics and hit rates, of all tenants together


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a key. ``digest``: SHA-256, in hex, of the whole text; the text has 256 random bits, so that no
    slower hash is needed. Times are seconds since the epoch."""

    key_id: str
    digest: str
    tenant: str
    scopes: tuple[Scope, ...]
    name: str = ""
    created_at: float = 0.0
    revoked_at: float | None = None

    def matches(self, text: str) -> bool:
        """Whether ``text`` is this key; takes the same time for any text."""
        return hmac.compare_digest(self.digest, digest(text))


def digest(text: str) -> str:
    """What is kept of a key's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def new_key(tenant: str, scopes: tuple[Scope, ...], name: str, now: float) -> tuple[str, ApiKey]:
    """A fresh key: its text, which is shown once, and what is kept."""
    key_id = secrets.token_hex(6)
    text = f"{PREFIX}-{key_id}-{secrets.token_urlsafe(32)}"
    return text, ApiKey(key_id=key_id, digest=digest(text), tenant=tenant, scopes=scopes, name=name, created_at=now)


def key_id_of(text: str) -> str | None:
    """The id in a key's text; None if it has not the shape of one."""
    match = _SHAPE.fullmatch(text)
    return match.group(1) if match else None
