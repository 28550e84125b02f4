"""Which entries of a lower tier go first since their tenant has more than its share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

_Tenant = TypeVar("_Tenant", str, int)


class TenantQuota(Generic[_Tenant]):
    """Alone knows whose entries are whose; a tenant is whatever names one, and 0 or empty is nobody. ``most``: how many
    entries a tenant may have before its own go first; None: as many as there are.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tenant_of: dict[bytes, _Tenant] = {}
        self._keys_of: dict[_Tenant, OrderedDict[bytes, None]] = {}  # the least recently used first
        self._over: dict[_Tenant, None] = {}

    def used(self, key: bytes, tenant: _Tenant) -> None:
        """``key`` is stored for ``tenant``, or is there and was used by it. It belongs to the first who did."""
        if not tenant:
            return
        owner = self._tenant_of.setdefault(key, tenant)
        if self._most is None:
            return
        keys = self._keys_of.setdefault(owner, OrderedDict())
        keys[key] = None
        keys.move_to_end(key)
        if len(keys) > self._most:
            self._over[owner] = None

    def touch(self, key: bytes) -> None:
        """``key`` was used."""
        owner = self._tenant_of.get(key)
        if owner is not None and self._most is not None:
            self._keys_of[owner].move_to_end(key)

    def gone(self, key: bytes) -> None:
        """``key`` is no more; harmless if it never was."""
        owner = self._tenant_of.pop(key, None)
        if owner is None or self._most is None:
            return
        keys = self._keys_of[owner]
        del keys[key]
        if len(keys) <= self._most:
            self._over.pop(owner, None)
        if not keys:
            del self._keys_of[owner]

    def tenant_of(self, key: bytes) -> _Tenant | None:
        """Whose ``key`` is; None: nobody's."""
        return self._tenant_of.get(key)

    def go_first(self) -> Iterator[bytes]:
        """Entries of tenants over their quota. Nothing may change before the iteration is over."""
        for tenant in self._over:
            yield from self._keys_of[tenant]
