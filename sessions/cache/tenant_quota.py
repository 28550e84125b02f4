"""Which entries of a lower tier go first since their tenant has more than its share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class TenantQuota:
    """Alone knows whose entries are whose. A tenant is a salt; what is found on disk at a start is nobody's until it is
    stored again. ``most``: how many entries a tenant may have before its own go first; None: as many as there are.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tenant_of: dict[bytes, str] = {}
        self._keys_of: dict[str, OrderedDict[bytes, None]] = {}  # the least recently used first
        self._over: dict[str, None] = {}

    def used(self, key: bytes, tenant: str) -> None:
        """``key`` is stored for ``tenant``, or is there and was used by it. It belongs to the first who did."""
        if self._most is None or not tenant:
            return
        owner = self._tenant_of.setdefault(key, tenant)
        keys = self._keys_of.setdefault(owner, OrderedDict())
        keys[key] = None
        keys.move_to_end(key)
        if len(keys) > self._most:
            self._over[owner] = None

    def touch(self, key: bytes) -> None:
        """``key`` was used."""
        owner = self._tenant_of.get(key)
        if owner is not None:
            self._keys_of[owner].move_to_end(key)

    def gone(self, key: bytes) -> None:
        """``key`` is no more; harmless if it never was."""
        owner = self._tenant_of.pop(key, None)
        if owner is None:
            return
        keys = self._keys_of[owner]
        del keys[key]
        if self._most is not None and len(keys) <= self._most:
            self._over.pop(owner, None)
        if not keys:
            del self._keys_of[owner]

    def tenant_of(self, key: bytes) -> str:
        """Whose ``key`` is; empty: nobody's."""
        return self._tenant_of.get(key, "")

    def go_first(self) -> Iterator[bytes]:
        """Entries of tenants over their quota. Nothing may change before the iteration is over."""
        for tenant in self._over:
            yield from self._keys_of[tenant]
