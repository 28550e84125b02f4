"""For which sizes of a step graphs are captured."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

# Captured up to the most sequences of a step. A step runs in the next larger bucket, its rest idle.
SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
ROWS_OF_A_DRAFT = (4, 8)  # the known token and 3 or 7 drafts


@dataclass(frozen=True, slots=True)
class Bucket:
    """A step of ``num_sequences`` with up to ``rows_each`` rows: 1 to decode, more to verify drafts."""

    num_sequences: int
    rows_each: int

    @property
    def num_rows(self) -> int:
        return self.num_sequences * self.rows_each


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets up to ``max_sequences`` and ``max_rows``: those of more rows run without a graph."""

    max_sequences: int
    max_rows: int

    @property
    def sequences(self) -> tuple[int, ...]:
        smaller = [size for size in SEQUENCES if size < self.max_sequences]
        return (*smaller, self.max_sequences)

    def find(self, num_sequences: int, longest: int) -> Bucket | None:
        """The smallest bucket that holds ``num_sequences`` of at most ``longest`` rows, None if there is none."""
        sizes, rows = self.sequences, (1, *ROWS_OF_A_DRAFT)
        if not 1 <= num_sequences <= self.max_sequences or longest > rows[-1]:
            return None
        size = sizes[bisect.bisect_left(sizes, num_sequences)]
        bucket = Bucket(size, rows[bisect.bisect_left(rows, longest)])
        return bucket if bucket.num_rows <= self.max_rows else None

    def all(self) -> Iterator[Bucket]:
        """Largest first: later graphs then fit in the memory that the first took."""
        for rows in sorted((1, *ROWS_OF_A_DRAFT), reverse=True):
            for size in reversed(self.sequences):
                if size * rows <= self.max_rows:
                    yield Bucket(size, rows)
