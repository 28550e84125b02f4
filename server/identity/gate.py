"""The gate: from what a request carries to who it is from, or an error."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

import msgspec

from ...sessions.errors import ConfigError, PermissionDenied, Unauthenticated
from .api_key import ApiKey, Scope, digest, key_id_of
from .key_file import KeyFile

logger = logging.getLogger(__name__)

REREAD_S = 1.0  # a revoked key is good for so long at most
_NOBODY = digest("")


class Identity(msgspec.Struct, frozen=True):
    """Who calls. ``tenant`` None: any; it is what the request says."""

    key_id: str
    tenant: str | None
    scopes: frozenset[Scope]

    def require(self, scope: Scope) -> None:
        """Raise PermissionDenied unless the key has ``scope``; an admin's has all."""
        if scope not in self.scopes and Scope.ADMIN not in self.scopes:
            raise PermissionDenied(
                f"this API key has no {scope} scope",
                field="authorization",
                remedy=f"create one with `sessile keys create --scopes {scope}`",
            )

    def tenant_for(self, named: str) -> str:
        """The tenant that a request acts for, which may name one. Raises PermissionDenied for another's."""
        if self.tenant is None or Scope.ADMIN in self.scopes:
            return named or self.tenant or ""
        if named not in ("", self.tenant):
            raise PermissionDenied(
                "this API key belongs to another tenant", field="tenant", remedy="leave the tenant out: the key says it"
            )
        return self.tenant


ANYBODY = Identity("", None, frozenset(Scope))  # where no keys are: whoever reaches the server, which is this machine


class Gate:
    """Knows the keys. Without any, everybody may do everything, which is why the server then stays on loopback.

    ``fixed_key``: one more key, from the configuration, with all scopes. ``clock`` in seconds.
    """

    def __init__(self, keys: KeyFile, fixed_key: str | None, clock: Callable[[], float]) -> None:
        self._file = keys
        self._fixed = digest(fixed_key) if fixed_key else None
        self._clock = clock
        self._stamp = keys.stamp()
        self._keys: dict[str, ApiKey] = {key.key_id: key for key in keys.read()}
        self._closed = bool(self._keys)
        self._read_at = clock()

    @property
    def is_open(self) -> bool:
        """There are no keys. Once there was one it stays closed: a removed file opens nothing while the server runs."""
        self._reread()
        return self._fixed is None and not self._closed

    def identify(self, authorization: str | None, api_key: str | None) -> Identity:
        """Who sent these headers: ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

        Raises:
            Unauthenticated: no key, or none that is valid. It does not say which.
        """
        if self.is_open:
            return ANYBODY
        text = _bearer(authorization) or api_key or ""
        if self._fixed is not None and hmac.compare_digest(self._fixed, digest(text)):
            return Identity("fixed", None, frozenset(Scope))
        key = self._keys.get(key_id_of(text) or "")
        if key is None:
            hmac.compare_digest(_NOBODY, digest(text))  # as long as for a key that is known
        elif key.matches(text) and key.revoked_at is None:
            return Identity(key.key_id, key.tenant, frozenset(key.scopes))
        raise Unauthenticated(
            "no valid API key" if text else "an API key is needed",
            field="authorization",
            remedy="send `Authorization: Bearer KEY`; `sessile keys create` makes one",
        )

    def _reread(self) -> None:
        now = self._clock()
        if now - self._read_at < REREAD_S:
            return
        self._read_at = now
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return
        try:
            self._keys = {key.key_id: key for key in self._file.read()}
        except ConfigError as error:  # the keys that were read before stay good
            logger.error("%s", error)
            return
        self._stamp = stamp
        self._closed = self._closed or bool(self._keys)


def _bearer(authorization: str | None) -> str | None:
    scheme, _, text = (authorization or "").partition(" ")
    return text.strip() or None if scheme.lower() == "bearer" else None
