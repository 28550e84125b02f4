"""One model's folder: its log, its segments and its catalogue, opened together and begun anew together."""

from __future__ import annotations

import logging

from ...errors import ConfigError
from ..keys import KVFingerprint
from ..tenant_quota import TenantQuota
from .catalogue import Catalogue
from .config import DiskConfig
from .folder import INDEX_NAME, DataFolder
from .index_log import IndexDamaged, IndexLog, Record, Shape
from .segments import Segments

logger = logging.getLogger(__name__)

_SPARE_RECORDS = 4096  # replaced records that a log may hold whatever its size


class Namespace:
    """Opening reads the log, never the blocks. The writer thread alone calls what changes files."""

    def __init__(self, folder: DataFolder, config: DiskConfig, fingerprint: KVFingerprint) -> None:
        """Open what is there; begin anew where it cannot be used.

        Raises:
            ConfigError: the folder can be neither read nor begun anew.
        """
        self._folder = folder
        self._quota_bytes = config.quota_bytes
        tenant_blocks = config.tenant_quota_bytes // fingerprint.block_bytes
        self._most_of_a_tenant = tenant_blocks if config.tenant_quota_bytes else None
        slots_per_segment = max(1, config.segment_bytes // fingerprint.block_bytes)
        self._shape = Shape(fingerprint.digest(), fingerprint.block_bytes, slots_per_segment)
        self.block_bytes = fingerprint.block_bytes
        self.num_slots = config.quota_bytes // fingerprint.block_bytes
        self.num_damaged = 0  # records and blocks found unusable at opening
        try:
            self._path = folder.namespace(self._shape.fingerprint)
            records = self._open_log()
            self.segments = Segments(self._path, self._shape.block_bytes, self._shape.slots_per_segment)
            try:
                self.catalogue = Catalogue.replay(self.num_slots, records, TenantQuota(self._most_of_a_tenant))
                self._leave_out_lost_slots()
                self.segments.remove_from(self.segments.segment_of(self.num_slots - 1) + 1)
                self.make_room()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise ConfigError(
                f"the disk tier cannot use {folder.path}: {error}",
                field="engine.disk_path",
                remedy="name a folder that this user may write, or set engine.disk_quota_bytes to 0",
            ) from error

    def _open_log(self) -> list[Record]:
        """Open the log, or begin one; returns its records."""
        try:
            self.log, records, self.num_damaged = IndexLog.open(self._path / INDEX_NAME)
            self._check_shape()
        except FileNotFoundError:
            self._begin()
        except IndexDamaged as error:
            logger.warning("%s: %s; the disk tier begins anew", self._path, error)
            self._begin()
            self.num_damaged = 1
        else:
            return records
        return []

    def _check_shape(self) -> None:
        found = self.log.shape
        if (found.fingerprint, found.block_bytes) != (self._shape.fingerprint, self._shape.block_bytes):
            self.log.close()
            raise IndexDamaged("the index log is of another model's blocks")
        self._shape = found  # with the segments' size that the folder was made with

    def _begin(self) -> None:
        Segments(self._path, self._shape.block_bytes, self._shape.slots_per_segment).remove_from(0)
        self.log = IndexLog.create(self._path / INDEX_NAME, self._shape, [])

    def _leave_out_lost_slots(self) -> None:
        """Forget blocks that lie behind the end of their file."""
        lost: list[bytes] = []
        ends: dict[int, int] = {}  # segment -> the first slot behind its end
        for stored in self.catalogue.records():
            segment = self.segments.segment_of(stored.slot)
            if segment not in ends:
                ends[segment] = segment * self._shape.slots_per_segment + self.segments.num_whole_slots(segment)
            if stored.slot >= ends[segment]:
                lost.append(stored.key)
        for key in lost:
            self.catalogue.remove(key)
        self.num_damaged += len(lost)

    # -- what the writer thread does --------------------------------------------------------------------------------

    @property
    def is_removed(self) -> bool:
        """Whether somebody deleted the folder."""
        return self.log.is_removed

    def begin_anew(self) -> None:
        """Make the folder again after it was deleted. The caller cleared the catalogue. Raises: OSError."""
        self._folder.renew()
        self._folder.namespace(self._shape.fingerprint)
        self.segments.close()
        old = self.log
        self._begin()
        old.close()

    def make_room(self, slot: int = 0) -> None:
        """Delete other models' blocks where ours, up to the segment of ``slot``, would not fit. Raises: OSError."""
        segment = self.segments.segment_of(slot)
        if not self.segments.exists(segment):
            segment_bytes = self._shape.slots_per_segment * self._shape.block_bytes
            self._folder.make_room(self._path, max(0, self._quota_bytes - (segment + 1) * segment_bytes))

    @property
    def wants_compaction(self) -> bool:
        """Whether most records of the log say nothing any more."""
        return self.log.num_records > 2 * len(self.catalogue) + _SPARE_RECORDS

    def compact(self, records: list[Record]) -> None:
        """Put a log of ``records`` alone in the place of the present one. Raises: OSError; nothing changed."""
        new = IndexLog.create(self._path / INDEX_NAME, self._shape, records)
        self.log.close()
        self.log = new

    def sync(self) -> None:
        """Return when the disk has all of it. Raises: OSError."""
        self.segments.sync()
        self.log.sync()

    def close(self) -> None:
        self.segments.close()
        self.log.close()
