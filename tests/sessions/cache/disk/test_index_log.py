"""The index log against the list of records that was written, under every kind of damage to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.sessions.cache.disk.index_log import (
    HEADER_BYTES,
    RECORD_BYTES,
    IndexDamaged,
    IndexLog,
    Record,
    RecordKind,
    Shape,
)

SHAPE = Shape(bytes(range(32)), 4096, 7)


def record(i: int) -> Record:
    kind = RecordKind.DROPPED if i % 3 == 2 else RecordKind.STORED
    return Record(kind, i, (i * 0x9E3779B97F4A7C15) % 2**64, bytes([i]) * 32)


def written(folder: Path, count: int) -> tuple[Path, list[Record]]:
    """A closed log of ``count`` records, half of them there from the start, and these records."""
    records = [record(i) for i in range(count)]
    log = IndexLog.create(folder / "index.log", SHAPE, records[: count // 2])
    for one in records[count // 2 :]:
        log.append([one])
    log.close()
    return folder / "index.log", records


def read(path: Path) -> tuple[list[Record], int]:
    log, records, damaged = IndexLog.open(path)
    assert log.shape == SHAPE
    log.close()
    return records, damaged


def test_all_records_come_back_in_order(tmp_path: Path):
    path, records = written(tmp_path, 9)
    assert read(path) == (records, 0)


def test_cut_at_every_byte_of_its_last_record(tmp_path: Path):
    path, records = written(tmp_path, 5)
    content = path.read_bytes()
    for size in range(len(content) - RECORD_BYTES, len(content)):
        path.write_bytes(content[:size])
        torn = size > len(content) - RECORD_BYTES
        assert read(path) == (records[:-1], int(torn))


def test_an_append_after_a_torn_record_takes_its_place(tmp_path: Path):
    path, records = written(tmp_path, 5)
    os.truncate(path, path.stat().st_size - 10)
    log, _, _ = IndexLog.open(path)
    log.append([record(77)])
    log.close()
    assert read(path) == ([*records[:-1], record(77)], 0)


@pytest.mark.parametrize("byte", range(RECORD_BYTES))
def test_a_flipped_bit_costs_one_record(tmp_path: Path, byte: int):
    path, records = written(tmp_path, 5)
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES + 2 * RECORD_BYTES + byte] ^= 1 << (byte % 8)
    path.write_bytes(content)
    assert read(path) == ([*records[:2], *records[3:]], 1)


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_a_flipped_bit_in_the_header_costs_all(tmp_path: Path, byte: int):
    path, _ = written(tmp_path, 5)
    content = bytearray(path.read_bytes())
    content[byte] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(IndexDamaged):
        IndexLog.open(path)


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_a_header_cut_anywhere_costs_all(tmp_path: Path, size: int):
    path, _ = written(tmp_path, 2)
    os.truncate(path, size)
    with pytest.raises(IndexDamaged):
        IndexLog.open(path)


def test_records_of_an_older_log_do_not_pass_for_records_of_a_newer_one(tmp_path: Path):
    path, _ = written(tmp_path, 6)
    old = path.read_bytes()
    path, records = written(tmp_path, 2)
    path.write_bytes(path.read_bytes() + old[HEADER_BYTES + 2 * RECORD_BYTES :])
    assert read(path) == (records, 4)


def test_a_failed_replacement_leaves_the_old_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, records = written(tmp_path, 4)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space left"):
        IndexLog.create(path, SHAPE, [])
    assert read(path) == (records, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["index.log"]


@settings(deadline=None, max_examples=200)
@given(garbage=st.binary(max_size=400), start=st.integers(0, 6 * RECORD_BYTES))
def test_garbage_anywhere_never_makes_a_record_up(tmp_path_factory: pytest.TempPathFactory, garbage: bytes, start: int):
    path, records = written(tmp_path_factory.mktemp("log"), 6)
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES + start : HEADER_BYTES + start + len(garbage)] = garbage
    path.write_bytes(content)
    found, _ = read(path)
    assert all(one in records for one in found)
    untouched = [i for i in range(6) if (i + 1) * RECORD_BYTES <= start or i * RECORD_BYTES >= start + len(garbage)]
    assert [records[i] for i in untouched] == [one for one in found if records.index(one) in untouched]
