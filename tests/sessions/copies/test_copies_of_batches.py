"""Copies of the batches: the database and the contents that it names, of one moment, and the way back to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from filled_batches import CONFIG, file_of, filled, without_hard_links

from sessile.server import app
from sessile.sessions.batches.batch import BatchStatus, LineResult
from sessile.sessions.batches.store import BatchStore
from sessile.sessions.copies.batches import contents_missing
from sessile.sessions.copies.copies import DataCopies
from sessile.sessions.copies.databases import copy_database, require_sound, sizes_of_files
from sessile.sessions.copies.replace import Part
from sessile.sessions.copies.restore import restore_newest
from sessile.sessions.errors import StoreError
from sessile.sessions.store import SessionStore


@pytest.fixture
def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    without_hard_links(monkeypatch)


@pytest.fixture(params=["links", "copies"])
def either_file_system(request: pytest.FixtureRequest) -> None:
    if request.param == "copies":
        request.getfixturevalue("no_hard_links")


@pytest.mark.usefixtures("either_file_system")
async def test_a_batch_goes_on_from_where_it_was_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = await filled(tmp_path)
    flags = ["store", "--data-dir", str(tmp_path)]
    assert await asyncio.to_thread(app.main, [*flags, "copy"]) == 0  # while the store is open
    await store.record("batch_1", [LineResult(line=2, succeeded=False, body=b"two")])
    await store.finish(await store.batch("", "batch_1"), 2.0)
    await store.delete_file("", "file-in")
    store.close()
    (tmp_path / "batches.db").write_bytes(b"not a database, but of some length" * 100)
    with pytest.raises(StoreError, match="sessile store restore --only batches"):
        BatchStore(tmp_path, CONFIG)
    assert await asyncio.to_thread(app.main, [*flags, "check"]) == 1
    assert await asyncio.to_thread(app.main, [*flags, "restore"]) == 0
    assert "lines that ended since then are run again" in capsys.readouterr().out
    assert await asyncio.to_thread(app.main, [*flags, "check"]) == 0
    store = BatchStore(tmp_path, CONFIG)
    batch = await store.batch("", "batch_1")
    assert (batch.status, batch.completed, batch.failed) == (BatchStatus.IN_PROGRESS, 1, 0)
    assert await store.lines_with_results("batch_1") == {1}
    assert store.path("file-in").read_bytes() == b"two lines"
    assert [file.file_id for file in await store.files("", None, after=None, limit=9, newest_first=True)] == ["file-in"]
    ended = await store.finish(batch, 3.0)
    assert ended.output_file_id is not None
    assert store.path(ended.output_file_id).read_bytes() == b"one\n"
    store.close()
    (copy,) = DataCopies(tmp_path).all()
    assert contents_missing(copy) == [], "a copy is not used up"


async def test_a_copy_made_while_files_come_and_go_has_the_content_of_each_file_it_names(tmp_path: Path) -> None:
    store = await filled(tmp_path)
    copies = DataCopies(tmp_path)
    contents: dict[str, bytes] = {"file-in": b"two lines"}
    for _ in range(4):
        copying = asyncio.create_task(asyncio.to_thread(copies.make))
        turns = 0
        while not copying.done() or turns < 8:
            name, content = f"file-{len(contents)}", b"x" * len(contents)
            contents[name] = content
            await store.add_file(file_of(name, content), [content])
            if turns % 3:
                await store.delete_file("", name)
            turns += 1
        made = copying.result()
        known = sizes_of_files(made / "batches.db")
        assert {path.name: path.read_bytes() for path in (made / "files").iterdir()} == {
            name: contents[name] for name in known
        }
    store.close()


async def test_batches_come_back_and_sessions_stay(tmp_path: Path) -> None:
    (await filled(tmp_path)).close()
    DataCopies(tmp_path).make()
    before = (tmp_path / "sessions.db").stat().st_ino
    restored = restore_newest(tmp_path, parts=[Part.BATCHES])
    assert restored.sources == {Part.BATCHES: DataCopies(tmp_path).all()[0]}
    assert (tmp_path / "sessions.db").stat().st_ino == before
    assert sorted(path.name for path in restored.aside.iterdir() if "-" not in path.name) == ["batches.db", "files"]


async def test_a_copy_without_batches_leaves_those_that_came_later(tmp_path: Path) -> None:
    SessionStore(tmp_path).close()
    DataCopies(tmp_path).make()
    (await filled(tmp_path)).close()
    restore_newest(tmp_path)
    assert contents_missing(tmp_path) == []
    with pytest.raises(StoreError, match="no sound copy of batches"):
        restore_newest(tmp_path, parts=[Part.BATCHES])


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Path]:
    """A data folder where the content of one of two files is not there."""
    store = asyncio.run(_with_a_second_file(tmp_path))
    (tmp_path / "files" / "file-lost").unlink()
    yield tmp_path
    store.close()


async def _with_a_second_file(folder: Path) -> BatchStore:
    store = await filled(folder)
    await store.add_file(file_of("file-lost", b"lost"), [b"lost"])
    return store


def test_a_lost_content_is_said_and_the_rest_is_copied(lost: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = DataCopies(lost).make()
    assert "file-lost" in caplog.text
    assert [path.name for path in (copy / "files").iterdir()] == ["file-in"]
    assert app.main(["store", "--data-dir", str(lost), "check"]) == 1


def test_a_file_that_comes_and_goes_between_the_looks_is_not_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = asyncio.run(filled(tmp_path))
    came: list[str] = []

    def copy_between(source: Path, target: Path) -> None:
        """Every try has a file of its own that comes behind the first look and goes before the second."""
        came.append(f"file-{len(came)}")
        asyncio.run(store.add_file(file_of(came[-1], b"short"), [b"short"]))
        copy_database(source, target)
        asyncio.run(store.delete_file("", came[-1]))

    monkeypatch.setattr("sessile.sessions.copies.batches.copy_database", copy_between)
    copy = DataCopies(tmp_path).make()
    store.close()
    assert len(came) > 1
    assert set(sizes_of_files(copy / "batches.db")) == {path.name for path in (copy / "files").iterdir()} == {"file-in"}
    assert not caplog.text
    require_sound(copy / "batches.db")
