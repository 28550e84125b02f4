"""Measures the lower tiers against plain copies, writes and reads of the same bytes on this machine.

``python -m sessile.sessions.cache.bench [FOLDER]``. Each line is the best of several rounds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from .disk import DiskConfig, DiskTier
from .disk.catalogue import Catalogue
from .disk.index_log import IndexLog, Record, RecordKind, Shape
from .host_tier import HostTier, Slab, allocate_slab
from .keys import BlockKeys, KVFingerprint
from .tiers import Entry, LoadOutcome, LowerTier
from .token_key import pack_tokens

BLOCK_BYTES = 30 * 2 * 3 * 16 * 64 * 2  # 16 tokens of the embedded model in bfloat16
NUM_BLOCKS = 375  # 6,000 tokens
ROUNDS = 7
FINGERPRINT = KVFingerprint("bench", "bfloat16", "layout", 16, BLOCK_BYTES, "rope")


def report(name: str, seconds: float, num_bytes: int = 0) -> None:
    rate = f"{num_bytes / seconds / 1e9:8.2f} GB/s" if num_bytes else ""
    sys.stdout.write(f"{name:44} {seconds * 1e3:10.2f} ms {rate}\n")


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some rounds."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def filled(num_blocks: int) -> Slab:
    slab = allocate_slab(num_blocks * BLOCK_BYTES, BLOCK_BYTES)
    slab[:] = np.random.default_rng(0).integers(0, 256, slab.shape, dtype=np.uint8)
    return slab


def entries_of(slab: Slab, generation: int) -> list[Entry]:
    return [Entry(generation.to_bytes(4, "little") + i.to_bytes(28, "little"), (row,)) for i, row in enumerate(slab)]


def load_all(tier: LowerTier, entries: list[Entry]) -> None:
    if tier.load(entries, time.monotonic() + 600) != [LoadOutcome.HIT] * len(entries):
        raise RuntimeError("a block that was stored is not there")


def measure_host(source: Slab, target: Slab) -> None:
    total = source.nbytes

    def copy() -> None:
        for to, row in zip(target, source, strict=True):
            np.copyto(to, row)

    report("memory copy", best(copy), total)
    tier = HostTier(allocate_slab(2 * total, BLOCK_BYTES))
    generations = iter(range(10**6))
    tier.slab[:] = 0
    report("host store", best(lambda: tier.store(entries_of(source, next(generations)))), total)
    entries = entries_of(target, next(generations) - 1)
    report("host load", best(lambda: load_all(tier, entries)), total)


def measure_plain_disk(source: Slab, target: Slab, folder: Path) -> None:
    path = folder / "plain"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    views = [(row.data, i * BLOCK_BYTES) for i, row in enumerate(source)]
    into = [([row.data], i * BLOCK_BYTES) for i, row in enumerate(target)]
    report("plain pwrite, page cache", best(lambda: [os.pwrite(descriptor, v, at) for v, at in views]), source.nbytes)
    report("plain pread, page cache", best(lambda: [os.preadv(descriptor, v, at) for v, at in into]), source.nbytes)
    os.fdatasync(descriptor)

    def cold() -> None:
        for buffers, at in into:
            os.preadv(descriptor, buffers, at)

    with dropped_cache([path]) as drop:
        report("plain pread, page cache dropped", best_after(drop, cold), source.nbytes)
    os.close(descriptor)
    path.unlink()


@contextmanager
def dropped_cache(paths: list[Path]) -> Iterator[Callable[[], None]]:
    """Gives a function that makes the kernel forget the pages of ``paths``."""
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]

    def drop() -> None:
        for descriptor in descriptors:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    yield drop
    for descriptor in descriptors:
        os.close(descriptor)


def best_after(prepare: Callable[[], None], work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        prepare()
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def disk_tier(folder: Path, num_bytes: int) -> DiskTier:
    return DiskTier(
        DiskConfig(path=str(folder / "kv"), quota_bytes=num_bytes, write_queue_bytes=num_bytes), FINGERPRINT
    )


def measure_disk(source: Slab, target: Slab, folder: Path) -> None:
    total = source.nbytes
    config = DiskConfig(path=str(folder / "kv"), quota_bytes=2 * total, write_queue_bytes=total)
    tier = DiskTier(config, FINGERPRINT)
    generations = iter(range(10**6))
    for _ in range(2):  # so that every slot was written once
        tier.store(entries_of(source, next(generations)))
        tier.sync()
    report(
        "disk store, taken (what a step would pay)",
        best_after(tier.sync, lambda: tier.store(entries_of(source, next(generations)))),
        total,
    )

    def write_through() -> None:
        tier.store(entries_of(source, next(generations)))
        tier.flush()

    tier.sync()
    report("disk store, written", best(write_through), total)
    tier.sync()
    entries = entries_of(target, next(generations) - 1)
    report("disk load, page cache", best(lambda: load_all(tier, entries)), total)
    with dropped_cache(list((folder / "kv").glob("*/*.kv"))) as drop:
        report("disk load, page cache dropped", best_after(drop, lambda: load_all(tier, entries)), total)
    tier.close()


def measure_opening(folder: Path, num_blocks: int) -> None:
    records = [Record(RecordKind.STORED, i, i, i.to_bytes(32, "little")) for i in range(num_blocks)]
    IndexLog.create(folder / "index.log", Shape(bytes(32), BLOCK_BYTES, 2900), records).close()

    def open_it() -> None:
        log, found, _ = IndexLog.open(folder / "index.log")
        log.close()
        if len(Catalogue.replay(num_blocks, found)) != num_blocks:
            raise RuntimeError("records are missing")

    report(f"open the index of {num_blocks:,} blocks", best(open_it))


def main() -> None:
    """Print all measurements."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        source, target = filled(NUM_BLOCKS), filled(NUM_BLOCKS)
        keys, tokens = BlockKeys(FINGERPRINT), pack_tokens(range(142_000))
        report("keys of 142,000 tokens", best(lambda: keys.chain(keys.root(""), tokens)))
        report("xxh3", best(lambda: [xxh3_64_intdigest(row.data) for row in source]), source.nbytes)
        measure_host(source, target)
        measure_plain_disk(source, target, folder)
        measure_disk(source, target, folder)
        measure_opening(folder, 100_000)


if __name__ == "__main__":
    main()
