"""``kill -9`` of a writing process, at random points: the next process finds right bytes or misses."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sessile.sessions.cache.disk.index_log import RECORD_BYTES

ROOT = Path(__file__).resolve().parents[4]

# Stores for ever, far beyond the quota, drops and loads at times; says after each sync up to where it was durable.
WRITER = """
import sys, time
import numpy as np
from sessile.sessions.cache.disk import DiskConfig, DiskTier, namespace
from sessile.sessions.cache.keys import KVFingerprint
from sessile.sessions.cache.tiers import Entry
namespace._SPARE_RECORDS = 16
path, first = sys.argv[1], int(sys.argv[2])
config = DiskConfig(path=path, quota_bytes=40 * 4096, write_queue_bytes=24 * 4096, segment_bytes=7 * 4096)
tier = DiskTier(config, KVFingerprint("w" * 64, "bfloat16", "group16-pair2", 16, 4096, "neox"))
key = lambda n: n.to_bytes(4, "little") * 8
block = lambda n: np.random.default_rng(n).integers(0, 256, 4096, dtype=np.uint8)
for n in range(first, first + 1000000):
    tier.store([Entry(key(n), (block(n),))])
    if n % 5 == 0:
        tier.drop([key(n - 3)])
    if n % 16 == 15:
        tier.sync()
        print(n, flush=True)
"""


@pytest.mark.parametrize("seed", range(20))
def test_kill_at_a_random_point(open_disk, tmp_path: Path, seed: int):
    wait = random.Random(seed).uniform(0.0, 0.12)
    durable, first = -1, (seed + 1) * 10_000
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root")}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "kv"), str(first)], stdout=subprocess.PIPE, env=environment
    ) as writer:
        assert writer.stdout is not None
        durable = int(writer.stdout.readline())  # it runs; from here on the point is random
        time.sleep(wait)
        writer.send_signal(signal.SIGKILL)
        lines = writer.stdout.read().split(b"\n")[:-1]
    durable = int(lines[-1]) if lines else durable
    disk = open_disk(num_slots=40, slots_per_segment=7)
    numbers = list(range(max(first, durable - 60), durable + 60))
    found = disk.found(*numbers)  # fails if any byte is wrong
    dropped = {n - 3 for n in range(first, durable + 1) if n % 5 == 0}
    # What is dropped soon after may be gone already; what is much older may have made room for a batch under way.
    expected = [n for n in range(max(first, durable - 5), durable + 1) if (n + 3) % 5]
    assert set(expected) <= set(found), f"durable blocks are gone: {sorted(set(expected) - set(found))}"
    assert not dropped & set(found), "dropped blocks are back"
    disk.store(*range(5))
    assert disk.found(*range(5)) == list(range(5))
    log = disk.namespace / "index.log"
    assert log.stat().st_size < 300 * RECORD_BYTES
