"""What the disk tier has, in memory: keys, slots, and who goes first. Does no I/O and has no lock of its own."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable

from ..block_pool import BlockPool
from ..tenant_quota import TenantQuota
from .index_log import Record, RecordKind


class Catalogue:
    """Alone owns the slots of a folder: free, holding a key's bytes, being read, or being written.

    A slot whose entry was replaced while somebody reads it becomes free when the last reader is done.
    """

    def __init__(self, num_slots: int, quota: TenantQuota[int] | None = None) -> None:
        self.num_slots = num_slots
        self.quota: TenantQuota[int] = quota or TenantQuota()
        self._pool = BlockPool(num_slots)
        self._entries: OrderedDict[bytes, Record] = OrderedDict()  # the least recently used first
        self.num_evicted = 0

    @classmethod
    def replay(cls, num_slots: int, records: Iterable[Record], quota: TenantQuota[int] | None = None) -> Catalogue:
        """What a log's ``records`` come to; blocks in slots from ``num_slots`` on are left out."""
        catalogue = cls(num_slots, quota)
        entries = catalogue._entries
        key_in: dict[int, bytes] = {}
        for record in records:
            old = entries.pop(record.key, None)
            if old is not None:
                del key_in[old.slot]
            if record.kind is RecordKind.STORED and record.slot < num_slots:
                replaced = key_in.get(record.slot)
                if replaced is not None:
                    del entries[replaced]
                key_in[record.slot] = record.key
                entries[record.key] = record
        slots = catalogue._pool.allocate(num_slots)
        catalogue._pool.release(slot for slot in reversed(slots) if slot not in key_in)
        for record in entries.values():
            catalogue.quota.used(record.key, record.tenant)
        return catalogue

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    @property
    def num_used_slots(self) -> int:
        return self.num_slots - self._pool.num_free

    def touch(self, key: bytes) -> bool:
        """Whether ``key`` is here; if so it was used just now."""
        if key not in self._entries:
            return False
        self._entries.move_to_end(key)
        self.quota.touch(key)
        return True

    def slots(self, keys: Iterable[bytes]) -> list[int]:
        """Where those of ``keys`` lie that are here. Counts for no use."""
        return [stored.slot for key in keys if (stored := self._entries.get(key)) is not None]

    def begin_read(self, key: bytes) -> Record | None:
        """Where ``key`` is; its slot is not written to before ``end_read``."""
        stored = self._entries.get(key)
        if stored is not None:
            self.touch(key)
            self._pool.retain([stored.slot])
        return stored

    def end_read(self, stored: Record) -> None:
        self._pool.release([stored.slot])

    def claim_slot(self) -> int | None:
        """A slot to write to; gives up the least recently used entry if none is free. None: all are being read."""
        if self._pool.num_free == 0:
            for key in itertools.chain(self.quota.go_first(), self._entries):
                stored = self._entries.get(key)
                if stored is not None and self._pool.refcount(stored.slot) == 1:
                    self.remove(key)
                    self.num_evicted += 1
                    break
            else:
                return None
        return self._pool.allocate(1)[0]

    def give_back(self, slot: int) -> None:
        """End a claim without an entry."""
        self._pool.release([slot])

    def put(self, stored: Record) -> None:
        """The bytes of ``stored.key`` are in the slot that was claimed for them."""
        tenant = self.quota.tenant_of(stored.key) or stored.tenant
        self.remove(stored.key)
        self._entries[stored.key] = stored
        self.quota.used(stored.key, tenant)

    def remove(self, key: bytes) -> Record | None:
        """Forget ``key``; returns what it was, None if it was not there."""
        stored = self._entries.pop(key, None)
        if stored is not None:
            self.quota.gone(key)
            self._pool.release([stored.slot])
        return stored

    def remove_if(self, stored: Record) -> bool:
        """Forget ``stored.key`` if it is still where ``stored`` says."""
        return self._entries.get(stored.key) == stored and self.remove(stored.key) is not None

    def clear(self) -> None:
        for key in list(self._entries):
            self.remove(key)

    def records(self) -> list[Record]:
        """All entries, the least recently used first: a log of these comes to this catalogue."""
        tenant_of = self.quota.tenant_of
        return [
            record if record.tenant else record._replace(tenant=tenant_of(record.key) or 0)
            for record in self._entries.values()
        ]

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool and entries agree. For tests: visits every slot."""
        self._pool.check_integrity()
        slots = [stored.slot for stored in self._entries.values()]
        assert len(set(slots)) == len(slots), "two keys share a slot"
        assert all(self._pool.refcount(slot) >= 1 for slot in slots)
