"""What the disk tier keeps, over restarts and damage: the right bytes or a miss that is counted."""

from __future__ import annotations

import dataclasses
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from sessile.sessions.cache.disk import DiskConfig
from sessile.sessions.cache.disk.index_log import HEADER_BYTES, RECORD_BYTES
from sessile.sessions.cache.disk.segments import Segments
from sessile.sessions.cache.tiers import Entry, LoadOutcome, Tier
from sessile.sessions.errors import ConfigError

HIT, MISS, CORRUPT, LATE = LoadOutcome.HIT, LoadOutcome.MISS, LoadOutcome.CORRUPT, LoadOutcome.LATE


def key_of(number: int) -> bytes:
    return number.to_bytes(4, "little") * 8


def test_round_trip(open_disk):
    disk = open_disk()
    assert disk.tier.tier is Tier.DISK
    assert disk.store(1, 2, 3) == [True] * 3
    assert disk.load(1, 2, 3, 4) == [HIT, HIT, HIT, MISS]
    assert disk.tier.contains([key_of(2), key_of(4)]) == [True, False]
    stats = disk.tier.stats()
    assert (stats.entries, stats.hits, stats.misses, stats.stored, stats.corrupt) == (3, 3, 1, 3, 0)
    assert stats.read_bytes == stats.written_bytes == stats.used_bytes == 3 * 4096
    assert stats.read_bandwidth > 0 < stats.write_bandwidth
    assert stats.unavailable == ""


def test_a_block_is_found_before_it_is_written(open_disk, monkeypatch: pytest.MonkeyPatch):
    may_write = threading.Event()
    write = Segments.write
    monkeypatch.setattr(Segments, "write", lambda *args: may_write.wait(60) and write(*args))
    disk = open_disk()
    disk.offer(1, 2)
    assert disk.load(1, 2) == [HIT, HIT]
    assert disk.tier.contains([key_of(1)]) == [True]
    may_write.set()
    disk.tier.sync()
    assert disk.load(1, 2) == [HIT, HIT]


def test_it_knows_what_the_page_cache_has(open_disk, monkeypatch: pytest.MonkeyPatch):
    """A load from memory and one from the disk differ by an order of magnitude: who plans one must know which it is."""
    disk = open_disk()
    disk.store(*range(8))
    keys = [key_of(n) for n in range(8)]
    assert disk.tier.share_in_page_cache(keys) == 1.0
    assert disk.tier.share_in_page_cache([*keys, *map(key_of, range(100, 108))]) == pytest.approx(0.5, abs=0.17)
    assert disk.tier.share_in_page_cache([]) == disk.tier.share_in_page_cache([key_of(99)]) == 0.0
    may_write = threading.Event()
    write = Segments.write
    monkeypatch.setattr(Segments, "write", lambda *args: may_write.wait(60) and write(*args))
    disk.offer(50)
    assert disk.tier.share_in_page_cache([key_of(50)]) == 1.0, "what waits to be written is in memory"
    may_write.set()
    disk.tier.sync()
    disk.tier.leave_page_cache(keys)
    if disk.tier.share_in_page_cache(keys) == 1.0:
        pytest.skip("this file system keeps its pages")
    assert disk.tier.share_in_page_cache(keys) == 0.0
    assert disk.found(*range(8)) == list(range(8))
    assert disk.tier.share_in_page_cache(keys) == 1.0


def test_the_callers_buffer_may_change_after_store(open_disk, monkeypatch: pytest.MonkeyPatch):
    may_write = threading.Event()
    write = Segments.write
    monkeypatch.setattr(Segments, "write", lambda *args: may_write.wait(60) and write(*args))
    disk = open_disk()
    block = np.zeros(4096, np.uint8)
    disk.tier.store([Entry(key_of(1), (block,))])
    block[:] = 1
    may_write.set()
    disk.tier.sync()
    disk.tier.load([Entry(key_of(1), (block,))], time.monotonic() + 60)
    assert not block.any()


def test_a_full_queue_rejects_and_never_waits(open_disk, monkeypatch: pytest.MonkeyPatch):
    may_write = threading.Event()
    write = Segments.write
    monkeypatch.setattr(Segments, "write", lambda *args: may_write.wait(60) and write(*args))
    disk = open_disk(queue_slots=2)
    assert disk.offer(1, 2, 3) == [True, True, False]
    assert disk.offer(1) == [True]
    assert disk.tier.stats().rejected == 1
    may_write.set()
    disk.tier.sync()
    assert disk.found(1, 2, 3) == [1, 2]


def test_blocks_outlive_the_process(open_disk):
    """LMCache #562, #1175, #1788, #2136: KV on SSD written again after each restart."""
    disk = open_disk()
    disk.store(*range(10))
    disk.tier.close()
    again = open_disk()
    assert again.found(*range(12)) == list(range(10))
    assert again.store(*range(10)) == [True] * 10
    assert again.tier.stats().written_bytes == 0


def test_the_least_recently_used_go_first_and_the_order_survives_a_restart(open_disk):
    disk = open_disk(num_slots=6)
    disk.store(*range(6))
    disk.load(0, 2)
    disk.store(1)  # stored again: used just now
    disk.tier.close()
    disk = open_disk(num_slots=6)
    disk.store(10, 11, 12)
    assert disk.found(*range(6), 10, 11, 12) == [0, 1, 2, 10, 11, 12]
    assert disk.tier.stats().evicted == 3


def test_a_dropped_block_stays_dropped(open_disk):
    disk = open_disk()
    disk.store(1, 2, 3)
    disk.tier.drop([key_of(2), key_of(99)])
    assert disk.load(1, 2, 3) == [HIT, MISS, HIT]
    disk.tier.close()
    assert open_disk().found(1, 2, 3) == [1, 3]


def test_a_block_dropped_while_it_is_written_stays_dropped(open_disk, monkeypatch: pytest.MonkeyPatch):
    writing, may_write = threading.Event(), threading.Event()
    write = Segments.write

    def slowly(*args: object) -> None:
        writing.set()
        may_write.wait(60)
        write(*args)

    monkeypatch.setattr(Segments, "write", slowly)
    disk = open_disk()
    disk.offer(1)
    writing.wait(60)
    disk.offer(2)
    disk.tier.drop([key_of(1), key_of(2)])
    assert disk.load(1, 2) == [MISS, MISS]
    may_write.set()
    disk.tier.sync()
    assert disk.load(1, 2) == [MISS, MISS]
    disk.tier.close()
    assert open_disk().load(1, 2) == [MISS, MISS]


def test_no_read_begins_after_the_deadline(open_disk):
    disk = open_disk()
    disk.store(1, 2)
    entries = [Entry(key_of(n), (np.full(4096, 7, np.uint8),)) for n in (1, 2)]
    assert disk.tier.load(entries, time.monotonic() - 1) == [LATE, LATE]
    assert all((entry.blocks[0] == 7).all() for entry in entries)
    assert disk.tier.stats().late == 2


def test_the_index_log_cut_at_every_byte_of_its_last_record(open_disk, tmp_path: Path):
    disk = open_disk()
    for number in range(4):
        disk.store(number)
    shutil.copytree(disk.path, tmp_path / "image")  # as a crash leaves it: nothing was closed
    name = disk.namespace.name
    size = (tmp_path / "image" / name / "index.log").stat().st_size
    assert size == HEADER_BYTES + 4 * RECORD_BYTES
    for cut in range(1, RECORD_BYTES + 1):
        path = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "image", path)
        os.truncate(path / name / "index.log", size - cut)
        damaged = open_disk(path)
        assert damaged.load(0, 1, 2, 3) == [HIT, HIT, HIT, MISS]
        assert damaged.tier.stats().corrupt == int(cut < RECORD_BYTES)
        assert damaged.store(3) == [True]
        damaged.tier.close()
        assert open_disk(path).found(0, 1, 2, 3) == [0, 1, 2, 3]


def test_a_flipped_bit_is_a_miss_and_is_counted(open_disk):
    """SGLang #38031, TRT-LLM #8813: a round trip through a lower tier corrupts."""
    disk = open_disk(slots_per_segment=16)
    disk.store(*range(8))
    segment = disk.namespace / "segment-00000.kv"
    content = bytearray(segment.read_bytes())
    for number in range(8):
        content[number * 4096 + 517 * number] ^= 1 << number
    segment.write_bytes(content)
    assert disk.load(*range(8)) == [CORRUPT] * 8
    assert disk.load(*range(8)) == [MISS] * 8
    assert disk.tier.stats().corrupt == 8
    disk.store(*range(8))
    assert disk.found(*range(8)) == list(range(8))


def test_a_corrupt_block_is_not_found_again_after_a_restart(open_disk):
    disk = open_disk(slots_per_segment=16)
    disk.store(1)
    (disk.namespace / "segment-00000.kv").write_bytes(bytes(4096))
    assert disk.load(1) == [CORRUPT]
    disk.tier.close()
    assert open_disk(slots_per_segment=16).load(1) == [MISS]


@pytest.mark.parametrize("running", [True, False], ids=["while running", "before opening"])
@pytest.mark.parametrize("size", [0, 1, 4096, 5 * 4096 - 1])
def test_a_truncated_segment(open_disk, size: int, running: bool):
    disk = open_disk()
    disk.store(*range(10))  # two segments of five slots
    if not running:
        disk.tier.close()
    os.truncate(disk.path / disk.namespace.name / "segment-00000.kv", size)
    if not running:
        disk = open_disk()
    found = disk.found(*range(10))
    assert found == [n for n in range(10) if n >= 5 or (n + 1) * 4096 <= size]
    assert disk.tier.stats().corrupt == 10 - len(found)
    disk.store(*range(10))
    assert disk.found(*range(10)) == list(range(10))


def test_a_missing_segment(open_disk):
    disk = open_disk()
    disk.store(*range(10))
    disk.tier.close()
    (disk.namespace / "segment-00001.kv").unlink()
    disk = open_disk()
    assert disk.found(*range(10)) == list(range(5))
    disk.store(*range(10))
    assert disk.found(*range(10)) == list(range(10))


def test_a_damaged_header_begins_anew(open_disk):
    disk = open_disk()
    disk.store(1, 2)
    disk.tier.close()
    log = disk.namespace / "index.log"
    log.write_bytes(b"X" + log.read_bytes()[1:])
    disk = open_disk()
    assert disk.load(1, 2) == [MISS, MISS]
    assert disk.tier.stats().corrupt == 1
    disk.store(1)
    disk.tier.close()
    assert open_disk().found(1, 2) == [1]


@pytest.mark.parametrize("version", [1, 99])
def test_a_log_of_another_version_begins_anew_says_so_and_costs_nothing_else(
    open_disk, disk_fingerprint, caplog: pytest.LogCaptureFixture, version: int
):
    other_model = dataclasses.replace(disk_fingerprint, weights="v" * 64)
    other = open_disk(fingerprint=other_model, num_slots=40)
    other.store(7)
    other.tier.close()
    theirs = other.namespace
    disk = open_disk(num_slots=40)
    disk.store(1, 2)
    disk.tier.close()
    (mine,) = [path for path in disk.path.iterdir() if path.is_dir() and path != theirs]
    content = bytearray((mine / "index.log").read_bytes())
    struct.pack_into("<I", content, 8, version)
    struct.pack_into("<Q", content, HEADER_BYTES - 8, xxh3_64_intdigest(bytes(content[: HEADER_BYTES - 8])))
    (mine / "index.log").write_bytes(content)

    disk = open_disk(num_slots=40)
    assert f"the index log has version {version}" in caplog.text
    assert disk.load(1, 2) == [MISS, MISS]
    disk.store(1)
    assert disk.found(1, 2) == [1]
    disk.tier.close()
    assert open_disk(fingerprint=other_model, num_slots=40).found(7) == [7], "another model's blocks"


def test_another_models_blocks_in_the_same_folder(open_disk, disk_fingerprint):
    disk = open_disk(num_slots=40)
    disk.store(1, 2)
    disk.tier.close()
    other_model = dataclasses.replace(disk_fingerprint, weights="v" * 64)
    other = open_disk(fingerprint=other_model, num_slots=40)
    assert other.load(1, 2) == [MISS, MISS]
    other.store(1)
    other.tier.close()
    assert open_disk(num_slots=40).found(1, 2) == [1, 2]


def test_another_models_log_under_this_models_name(open_disk, disk_fingerprint):
    disk = open_disk()
    disk.store(1, 2)
    disk.tier.close()
    mine = disk.namespace
    other = open_disk(fingerprint=dataclasses.replace(disk_fingerprint, weights="v" * 64))
    other.store(1)
    other.tier.close()
    theirs = next(p for p in disk.path.iterdir() if p.is_dir() and p != mine)
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    assert open_disk().load(1, 2) == [MISS, MISS]


def test_other_models_make_room_the_oldest_first(open_disk, disk_fingerprint):
    for age, name in ((300, "b"), (200, "c")):
        disk = open_disk(fingerprint=dataclasses.replace(disk_fingerprint, weights=name), num_slots=20)
        disk.store(*range(5))
        disk.tier.close()
        for log in disk.path.glob("*/index.log"):
            if log.stat().st_mtime > time.time() - 100:
                os.utime(log, (time.time() - age, time.time() - age))
    before = {p.parent.name: p.stat().st_mtime for p in disk.path.glob("*/index.log")}
    disk = open_disk(num_slots=20)
    disk.store(*range(9))
    left = {p.name for p in disk.path.iterdir() if p.is_dir()}
    oldest = min(before, key=before.__getitem__)
    assert oldest not in left
    assert len(left) == 2
    assert disk.found(*range(9)) == list(range(9))


def test_a_smaller_quota(open_disk):
    disk = open_disk(num_slots=16)
    disk.store(*range(16))
    disk.tier.close()
    disk = open_disk(num_slots=6)
    assert len(disk.found(*range(16))) == 6
    assert sorted(p.name for p in disk.namespace.glob("*.kv")) == ["segment-00000.kv", "segment-00001.kv"]
    disk.store(*range(20, 30))
    assert disk.tier.stats().entries == 6


def test_a_folder_keeps_the_segments_that_it_was_made_with(open_disk):
    disk = open_disk(slots_per_segment=5)
    disk.store(*range(10))
    disk.tier.close()
    assert open_disk(slots_per_segment=3).found(*range(10)) == list(range(10))


def test_the_log_does_not_grow_for_ever(open_disk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sessile.sessions.cache.disk.namespace._SPARE_RECORDS", 20)
    disk = open_disk(num_slots=4)
    for number in range(300):
        disk.offer(number)
        disk.tier.sync()
    assert (disk.namespace / "index.log").stat().st_size < HEADER_BYTES + 64 * RECORD_BYTES
    assert disk.found(*range(300)) == [296, 297, 298, 299]


def test_two_servers_on_one_folder(open_disk):
    disk = open_disk()
    with pytest.raises(ConfigError, match=f"another server \\(process {os.getpid()}\\) uses the disk tier") as caught:
        open_disk()
    assert caught.value.field == "engine.disk_path"
    assert "folder of its own" in str(caught.value)
    program = (
        "import sys; from pathlib import Path; from sessile.sessions.cache.disk.folder import DataFolder;"
        f"DataFolder(Path({str(disk.path)!r}))"
    )
    root = Path(__file__).resolve().parents[4]
    environment = {**os.environ, "PYTHONPATH": str(root / ".import-root")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "another server" in done.stderr
    disk.tier.close()
    open_disk()


@pytest.mark.parametrize("key", ["quota_bytes", "write_queue_bytes", "num_readers", "segment_bytes"])
def test_a_configuration_that_cannot_work_names_its_key(key: str):
    config = DiskConfig(**{"path": "somewhere", "quota_bytes": 2**20, key: 0})
    with pytest.raises(ConfigError) as caught:
        config.validate(4096)
    assert caught.value.field == f"engine.disk_{key}"


def test_a_path_that_cannot_be_a_folder(open_disk, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use"):
        open_disk(tmp_path / "file")
