"""Batches that cannot be copied: the sessions are copied all the same, and the last copy of batches is kept."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest
from filled_batches import CONFIG, filled, without_hard_links

from sessile.server import app
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.copies.batches import contents_missing
from sessile.sessions.copies.copies import KEPT, DataCopies
from sessile.sessions.copies.replace import Part
from sessile.sessions.copies.restore import restore_newest
from sessile.sessions.errors import StoreError


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    asyncio.run(filled(tmp_path)).close()
    return tmp_path


def names_in(copy: Path) -> set[str]:
    return {path.name for path in copy.iterdir()}


def damage_batches(folder: Path) -> None:
    path = folder / "batches.db"
    path.write_bytes(b"\xa5" * path.stat().st_size)


def test_damaged_batches_keep_no_copy_of_sessions_from_being_made(
    data_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies = DataCopies(data_folder)
    with_batches = copies.make()
    damage_batches(data_folder)
    made = [copies.make() for _ in range(KEPT + 1)]
    assert "without batches" in caplog.text
    assert all(names_in(copy) == {"sessions.db"} for copy in made[1:])
    assert copies.all() == [*made[: -KEPT - 1 : -1], with_batches], "the last copy of batches is kept"
    assert restore_newest(data_folder).sources == {Part.SESSIONS: made[-1], Part.BATCHES: with_batches}
    BatchStore(data_folder, CONFIG).close()
    assert contents_missing(data_folder) == []
    whole = [copies.make() for _ in range(KEPT)]
    assert copies.all() == whole[::-1]


def test_the_command_says_by_its_status_that_batches_are_not_in_a_copy(
    data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["store", "--data-dir", str(data_folder), "copy"]
    assert app.main(flags) == 0
    damage_batches(data_folder)
    assert app.main(flags) == 1
    without, whole = DataCopies(data_folder).all()
    assert (names_in(without), names_in(whole)) == ({"sessions.db"}, {"sessions.db", "batches.db", "files"})
    assert str(without) in capsys.readouterr().out


def test_batches_are_never_newer_than_the_sessions_they_come_back_with(data_folder: Path) -> None:
    copies = DataCopies(data_folder)
    older, newer = copies.make(), copies.make()
    (newer / "sessions.db").write_bytes(b"damaged")
    assert restore_newest(data_folder).sources == {Part.SESSIONS: older, Part.BATCHES: older}
    assert restore_newest(data_folder, parts=[Part.BATCHES]).sources == {Part.BATCHES: newer}
    (older / "sessions.db").write_bytes(b"damaged")
    with pytest.raises(StoreError, match="no sound copy of sessions"):
        restore_newest(data_folder)


def test_a_disk_that_is_full_of_contents_has_room_for_sessions(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_hard_links(monkeypatch)

    def full(_source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    assert names_in(DataCopies(data_folder).make()) == {"sessions.db"}
    assert os.strerror(errno.ENOSPC) in caplog.text


@pytest.mark.parametrize("has_links", [True, False])
def test_contents_need_room_where_they_cannot_be_linked(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, has_links: bool
) -> None:
    if not has_links:
        without_hard_links(monkeypatch)
    content = data_folder / "files" / "file-in"
    with content.open("ab") as file:
        file.truncate(64 * 2**20)  # takes no room here, but its copy would
    usage = type("Usage", (), {"free": 32 * 2**20})
    monkeypatch.setattr("sessile.sessions.copies.copies.shutil.disk_usage", lambda _: usage)
    copy = DataCopies(data_folder).make()
    assert (copy / "sessions.db").exists()
    assert (copy / "batches.db").exists() == has_links
    assert ("32 are free" in caplog.text) != has_links
