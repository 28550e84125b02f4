"""A disk that fails while the server runs: misses and a metric, never an error, and back when the disk is."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from set_clock import SetClock

from sessile.sessions.cache.disk.segments import RESERVED_BYTES, Segments
from sessile.sessions.cache.tiers import LoadOutcome

ROOT = Path(__file__).resolve().parents[4]
HIT, MISS, ERROR = LoadOutcome.HIT, LoadOutcome.MISS, LoadOutcome.ERROR


def fail_with(number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_reads_that_fail(open_disk, monkeypatch: pytest.MonkeyPatch):
    clock = SetClock()
    disk = open_disk(clock=clock)
    disk.store(*range(5))
    with monkeypatch.context() as broken:
        broken.setattr(Segments, "read", fail_with(5))
        outcomes = disk.load(*range(5))
        assert set(outcomes) <= {ERROR, MISS} and outcomes.count(ERROR) >= 3
        assert "Input/output error" in disk.tier.stats().unavailable
        errors = disk.tier.stats().errors
        assert disk.load(*range(5)) == [MISS] * 5, "the device is left alone"
        assert disk.tier.stats().errors == errors
        assert disk.known(*range(5)) == []
        clock.now += 5
        assert disk.known(*range(5)) == [0, 1, 2, 3, 4], "else nobody would make an attempt"
        assert ERROR in disk.load(0), "one attempt after the pause"
    clock.now += 1
    assert disk.load(0) == [MISS], "the pause is longer after a failed attempt"
    clock.now += 60
    assert disk.load(*range(5)) == [HIT] * 5
    assert disk.tier.stats().unavailable == ""


@pytest.mark.parametrize("number", [5, 28, 30, 122], ids=lambda n: os.strerror(n))
def test_writes_that_fail(open_disk, monkeypatch: pytest.MonkeyPatch, number: int):
    clock = SetClock()
    disk = open_disk(clock=clock)
    disk.store(1)
    with monkeypatch.context() as broken:
        broken.setattr(Segments, "write", fail_with(number))
        disk.store(2)
        disk.store(3)
        stats = disk.tier.stats()
        assert (stats.errors, stats.rejected) == (2, 2)
        assert os.strerror(number) in stats.unavailable
        assert disk.store(4) == [False], "not taken while writing pauses"
    assert disk.load(1, 2, 3, 4) == [HIT, MISS, MISS, MISS], "what is there can still be read"
    clock.now += 2
    assert disk.store(2, 3) == [True, True]
    assert disk.load(1, 2, 3) == [HIT] * 3
    assert disk.tier.stats().unavailable == ""
    disk.tier.check_integrity()


def test_the_log_cannot_be_written(open_disk, monkeypatch: pytest.MonkeyPatch):
    disk = open_disk()
    with monkeypatch.context() as broken:
        broken.setattr("sessile.sessions.cache.disk.index_log.write_fully", fail_with(28))
        disk.store(1)
    assert disk.load(1) == [MISS]
    disk.store(2)
    assert disk.load(2) == [HIT]
    disk.tier.close()
    assert open_disk().load(1, 2) == [MISS, HIT]


def test_a_sync_that_fails_is_counted(open_disk, monkeypatch: pytest.MonkeyPatch):
    disk = open_disk()
    disk.store(1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail_with(5))
        disk.store(2)
    assert disk.tier.stats().errors == 1
    assert disk.load(1, 2) == [HIT, HIT]


@pytest.mark.parametrize("what", ["all", "namespace", "log"])
def test_the_folder_is_deleted_while_running(open_disk, what: str):
    disk = open_disk()
    disk.store(*range(5))
    target = {"all": disk.path, "namespace": disk.namespace, "log": disk.namespace / "index.log"}[what]
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    disk.store(10, 11)
    assert disk.tier.stats().errors == 1
    assert disk.found(*range(12)) == [10, 11]
    disk.tier.close()
    assert open_disk().found(*range(12)) == [10, 11]


def test_a_deleted_folder_that_another_server_took(open_disk):
    clock = SetClock()
    disk = open_disk(clock=clock)
    disk.store(1)
    shutil.rmtree(disk.path)
    other = open_disk()
    other.store(5)
    for number in (2, 3):
        disk.store(number)
        clock.now += 10
    assert disk.found(1, 2, 3) == []
    assert disk.tier.stats().errors >= 2
    assert other.load(5) == [HIT]
    other.tier.close()
    clock.now += 1000
    disk.store(4)
    assert disk.load(4, 5) == [HIT, MISS], "begun anew: the other's folder was its own"


def test_a_folder_whose_place_is_gone_and_comes_back(open_disk, tmp_path: Path):
    clock = SetClock()
    disk = open_disk(tmp_path / "mount" / "kv", clock=clock)
    disk.store(1)
    shutil.rmtree(tmp_path / "mount")
    (tmp_path / "mount").write_text("not a folder")
    for number in (2, 3):
        disk.store(number)
    assert disk.found(1, 2, 3) == []
    assert disk.tier.stats().unavailable
    (tmp_path / "mount").unlink()
    clock.now += 1000
    disk.store(2)
    assert disk.load(2) == [HIT]
    assert disk.tier.stats().unavailable == ""


def run_in_child(program: str, **environment: str) -> None:
    """Run ``program``, which has ``open_tier``, ``store`` and ``load``, in a process of its own."""
    prelude = """
        import os, sys, time, numpy as np
        from sessile.sessions.cache.disk import DiskConfig, DiskTier
        from sessile.sessions.cache.keys import KVFingerprint
        from sessile.sessions.cache.tiers import Entry, LoadOutcome
        SIZE = 65536
        clock = lambda: clock.now
        clock.now = 0.0
        def open_tier(path, slots=200, per_segment=4):
            config = DiskConfig(path=path, quota_bytes=slots * SIZE, segment_bytes=per_segment * SIZE)
            return DiskTier(config, KVFingerprint("w", "bf16", "l", 16, SIZE, "r"), clock)
        def entry(n, fill):
            block = np.full(SIZE, fill, np.uint8)
            return Entry(n.to_bytes(4, "little") * 8, (block,))
        def store(tier, *numbers):
            for n in numbers:
                tier.store([entry(n, n % 251)])
                tier.sync()
        def load(tier, *numbers):
            entries = [entry(n, 255) for n in numbers]
            found = []
            for n, e, o in zip(numbers, entries, tier.load(entries, 1e9)):
                if o is LoadOutcome.HIT:
                    assert (e.blocks[0] == n % 251).all(), f"block {n} is wrong"
                    found.append(n)
            return found
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".import-root"), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


FILL = """
    tier = open_tier(os.environ["TARGET"])
    store(tier, *range(150))
    stats = tier.stats()
    found = load(tier, *range(150))
    assert stats.errors >= 2 and stats.unavailable, stats
    assert 5 < len(found) < 150 and found == list(range(len(found))), found
    assert stats.entries == len(found)
    make_room()
    clock.now += 1000
    store(tier, 500)
    assert load(tier, 500) == [500]
    assert not tier.stats().unavailable
    tier.close()
    tier = open_tier(os.environ["TARGET"])
    assert load(tier, *range(150), 500) == [*found, 500]
    tier.close()
"""


def test_a_full_disk(tmp_path: Path):
    """A file system of 4 MiB beside the reserve that another program's file fills, until that file goes away."""
    size = f"size={RESERVED_BYTES + 4 * 2**20}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs needs root: {mounted.stderr.decode().strip()}")
    try:
        (tmp_path / "ballast").write_bytes(bytes(2**20))
        make_room = "def make_room(): os.unlink(os.path.join(os.path.dirname(os.environ['TARGET']), 'ballast'))\n"
        run_in_child(make_room + textwrap.dedent(FILL), TARGET=str(tmp_path / "kv"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_last_of_the_disk_is_left_to_the_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    segments = Segments(tmp_path, 4096, 10)
    block = np.full(4096, 7, np.uint8)
    segments.write(0, block)
    nearly_full = os.statvfs_result(
        (4096, 4096, 2**20, RESERVED_BYTES // 4096, RESERVED_BYTES // 4096, 0, 0, 0, 0, 255)
    )
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: nearly_full)
    with pytest.raises(OSError, match="MiB are left"):
        segments.write(1, block)
    segments.write(0, block)  # takes no new space
    assert segments.num_whole_slots(0) == 1


def test_files_that_may_not_grow(tmp_path: Path):
    """The same through a limit on the size of files, which needs no rights."""
    program = """
        import resource
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        def make_room(): resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 * 65536, most))
        real_open = open_tier
        def open_tier(path): return real_open(path, per_segment=100)
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    run_in_child(textwrap.dedent(program) + textwrap.dedent(FILL), TARGET=str(tmp_path / "kv"))


def test_permission_lost_while_running(tmp_path: Path):
    """Root is let through everywhere, so the child becomes somebody else first."""
    if os.geteuid() == 0:
        os.chmod(tmp_path, 0o777)
        for parent in tmp_path.parents:
            if parent.stat().st_uid == 0 and parent.stat().st_mode & 0o005 != 0o005 and "pytest" in str(parent):
                os.chmod(parent, 0o755)
    run_in_child(
        """
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        path = os.environ["TARGET"]
        tier = open_tier(path)
        store(tier, *range(4))
        space = next(os.path.join(path, n) for n in os.listdir(path) if n != "LOCK")
        os.chmod(space, 0); os.chmod(path, 0)
        store(tier, *range(10, 20))
        assert load(tier, *range(20)) == [0, 1, 2, 3]
        stats = tier.stats()
        assert "Permission denied" in stats.unavailable and stats.errors == 2, stats
        os.chmod(path, 0o700); os.chmod(space, 0o700)
        clock.now += 1000
        store(tier, 10)
        assert load(tier, *range(20)) == [0, 1, 2, 3, 10]
        tier.close()
        """,
        TARGET=str(tmp_path / "kv"),
    )
