"""What the disk tier has, in memory: keys, slots, and who goes first. Does no I/O and has no lock of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..block_pool import BlockPool
from .index_log import Record, RecordKind


class Stored(NamedTuple):
    """Where the bytes of a key are and what their checksum is."""

    slot: int
    checksum: int


class Catalogue:
    """Alone owns the slots of a folder: free, holding a key's bytes, being read, or being written.

    A slot whose entry was replaced while somebody reads it becomes free when the last reader is done.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._pool = BlockPool(num_slots)
        self._entries: OrderedDict[bytes, Stored] = OrderedDict()  # the least recently used first
        self.num_evicted = 0

    @classmethod
    def replay(cls, num_slots: int, records: Iterable[Record]) -> Catalogue:
        """What a log's ``records`` come to; blocks in slots from ``num_slots`` on are left out."""
        by_slot: dict[int, Record] = {}
        slot_of: dict[bytes, int] = {}
        for record in records:
            old_slot = slot_of.pop(record.key, None)
            if old_slot is not None:
                by_slot.pop(old_slot, None)
            if record.kind is RecordKind.STORED and record.slot < num_slots:
                replaced = by_slot.pop(record.slot, None)
                if replaced is not None:
                    slot_of.pop(replaced.key, None)
                by_slot[record.slot] = record
                slot_of[record.key] = record.slot
        catalogue = cls(num_slots)
        taken = catalogue._pool.allocate(num_slots)
        catalogue._pool.release(slot for slot in reversed(taken) if slot not in by_slot)
        for slot, record in by_slot.items():
            catalogue._entries[record.key] = Stored(slot, record.checksum)
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
        return True

    def begin_read(self, key: bytes) -> Stored | None:
        """Where ``key`` is; its slot is not written to before ``end_read``."""
        stored = self._entries.get(key)
        if stored is not None:
            self._entries.move_to_end(key)
            self._pool.retain([stored.slot])
        return stored

    def end_read(self, stored: Stored) -> None:
        self._pool.release([stored.slot])

    def claim_slot(self) -> int | None:
        """A slot to write to; gives up the least recently used entry if none is free. None: all are being read."""
        if self._pool.num_free == 0:
            for key, stored in self._entries.items():
                if self._pool.refcount(stored.slot) == 1:
                    self.remove(key)
                    self.num_evicted += 1
                    break
            else:
                return None
        return self._pool.allocate(1)[0]

    def give_back(self, slot: int) -> None:
        """End a claim without an entry."""
        self._pool.release([slot])

    def put(self, key: bytes, slot: int, checksum: int) -> None:
        """``key``'s bytes are in the claimed ``slot``."""
        self.remove(key)
        self._entries[key] = Stored(slot, checksum)

    def remove(self, key: bytes) -> Stored | None:
        """Forget ``key``; returns what it was, None if it was not there."""
        stored = self._entries.pop(key, None)
        if stored is not None:
            self._pool.release([stored.slot])
        return stored

    def remove_if(self, key: bytes, stored: Stored) -> bool:
        """Forget ``key`` if it is still what ``stored`` says."""
        return self._entries.get(key) == stored and self.remove(key) is not None

    def clear(self) -> None:
        for key in list(self._entries):
            self.remove(key)

    def items(self) -> Iterator[tuple[bytes, Stored]]:
        """The least recently used first."""
        return iter(self._entries.items())

    def records(self) -> list[Record]:
        """A log's records that come to this catalogue, order of use included."""
        return [Record(RecordKind.STORED, stored.slot, stored.checksum, key) for key, stored in self._entries.items()]

    def check_integrity(self) -> None:
        """Raise AssertionError unless pool and entries agree. For tests: visits every slot."""
        self._pool.check_integrity()
        slots = [stored.slot for stored in self._entries.values()]
        assert len(set(slots)) == len(slots), "two keys share a slot"
        assert all(self._pool.refcount(slot) >= 1 for slot in slots)
