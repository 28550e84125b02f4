"""The batch store beside a plain model: uploads, batches, results, deletions, and opening it anew at any time."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sessile.sessions.batches.batch import Batch, BatchStatus, BatchUsage, FilePurpose, LineResult, StoredFile
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.batches.errors import FileInUse, StorageFull, UnknownBatch, UnknownFile
from sessile.sessions.batches.store import BatchStore, new_file_id
from sessile.sessions.errors import CapacityError

LIMITS = BatchesConfig(max_files=6, max_total_bytes=400, max_unfinished=3, ttl_s=100.0)
TENANTS = st.sampled_from(["", "other"])
NUMBERS = itertools.count()


class StoreMachine(RuleBasedStateMachine):
    files, batches = Bundle("files"), Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1000.0
        self.known: dict[str, tuple[StoredFile, bytes]] = {}
        self.open: dict[str, Batch] = {}
        self.over: dict[str, Batch] = {}
        self.results: dict[str, list[LineResult]] = {}
        self.since_start: Counter[str] = Counter()
        self.store = BatchStore(Path(self.folder.name), LIMITS)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    def _files_of(self, tenant: str) -> list[StoredFile]:
        return [file for file, _ in self.known.values() if file.tenant == tenant]

    @rule(target=files, tenant=TENANTS, content=st.binary(max_size=120), keep_s=st.sampled_from([20.0, 100.0]))
    def upload(self, tenant: str, content: bytes, keep_s: float) -> Any:
        file = StoredFile(
            file_id=new_file_id(), tenant=tenant, filename="f", purpose=FilePurpose.BATCH, num_bytes=len(content),
            created_at=self.now, expires_at=self.now + keep_s,
        )  # fmt: skip
        held = self._files_of(tenant)
        if len(held) >= LIMITS.max_files or sum(f.num_bytes for f in held) + len(content) > LIMITS.max_total_bytes:
            with pytest.raises(StorageFull):
                self.run(self.store.add_file(file, [content]))
            return multiple()
        self.run(self.store.add_file(file, [content[:7], content[7:]]))
        self.known[file.file_id] = (file, content)
        return file.file_id

    @rule(target=batches, tenant=TENANTS, file_id=files)
    def begin(self, tenant: str, file_id: str) -> Any:
        batch = Batch(
            batch_id=f"batch_{next(NUMBERS)}", tenant=tenant, endpoint="/v1/responses", input_file_id=file_id,
            completion_window="24h", metadata={"k": "v"}, model="m", created_at=self.now, expires_at=self.now + 9,
        )  # fmt: skip
        if file_id not in self.known or self.known[file_id][0].tenant != tenant:
            with pytest.raises(UnknownFile):
                self.run(self.store.add_batch(batch))
            return multiple()
        if sum(other.tenant == tenant for other in self.open.values()) >= LIMITS.max_unfinished:
            with pytest.raises(CapacityError):
                self.run(self.store.add_batch(batch))
            return multiple()
        self.run(self.store.add_batch(batch))
        self.open[batch.batch_id] = batch
        self.results[batch.batch_id] = []
        return batch.batch_id

    @rule(batch_id=batches, line=st.integers(1, 5), succeeded=st.booleans(), tokens=st.integers(0, 9))
    def end_a_line(self, batch_id: str, line: int, succeeded: bool, tokens: int) -> None:
        if batch_id not in self.open:
            return
        body = b"%d %d" % (line, tokens)
        result = LineResult(line=line, succeeded=succeeded, body=body, usage=BatchUsage(input_tokens=tokens))
        self.run(self.store.record(batch_id, [result]))
        if line not in {kept.line for kept in self.results[batch_id]}:  # else it keeps the result that it has
            self.results[batch_id].append(result)
            self.open[batch_id] = self.open[batch_id].with_result(result)
            self.since_start["succeeded" if succeeded else "failed"] += 1

    @rule(batch_id=consumes(batches), ending=st.sampled_from([BatchStatus.COMPLETED, BatchStatus.CANCELLED]))
    def finish(self, batch_id: str, ending: BatchStatus) -> None:
        if batch_id not in self.open:
            return

        def finalizing(batch: Batch) -> Batch:
            return batch.at(BatchStatus.FINALIZING, self.now, ending=ending)

        batch = self.run(self.store.change(batch_id, finalizing))
        ended = self.run(self.store.finish(batch, self.now))
        before = self.open.pop(batch_id)
        assert (ended.status, ended.completed, ended.failed) == (ending, before.completed, before.failed)
        assert ended.usage.input_tokens == sum(result.usage.input_tokens for result in self.results[batch_id])
        for succeeded, file_id in ((True, ended.output_file_id), (False, ended.error_file_id)):
            lines = [result.body for result in self.results[batch_id] if result.succeeded == succeeded]
            assert (file_id is not None) == bool(lines)
            if file_id is not None:
                file = self.run(self.store.file(before.tenant, file_id))
                self.known[file_id] = (file, b"".join(line + b"\n" for line in lines))
        self.over[batch_id] = ended
        self.since_start[ending] += 1

    @rule(file_id=files, tenant=TENANTS)
    def delete(self, file_id: str, tenant: str) -> None:
        reading = any(batch.input_file_id == file_id for batch in self.open.values())
        if file_id not in self.known or self.known[file_id][0].tenant != tenant:
            with pytest.raises(UnknownFile):
                self.run(self.store.delete_file(tenant, file_id))
        elif reading:
            with pytest.raises(FileInUse):
                self.run(self.store.delete_file(tenant, file_id))
        else:
            self.run(self.store.delete_file(tenant, file_id))
            del self.known[file_id]

    @rule(seconds=st.sampled_from([5.0, 30.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.run(self.store.prune(self.now))
        reading = {batch.input_file_id for batch in self.open.values()}
        for file_id, (file, _) in list(self.known.items()):
            if file.expires_at <= self.now and file_id not in reading:
                del self.known[file_id]
        for batch_id, batch in list(self.over.items()):
            if batch.entered[batch.status] <= self.now - LIMITS.ttl_s:
                del self.over[batch_id]

    @rule()
    def open_anew(self) -> None:
        self.store.close()
        (Path(self.folder.name) / "files" / "file-left.part").write_bytes(b"by a process that was killed")
        (Path(self.folder.name) / "files" / "file-never-told").write_bytes(b"by a process that was killed")
        self.store = BatchStore(Path(self.folder.name), LIMITS)
        self.since_start.clear()

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        for tenant in ("", "other"):
            found = self.run(self.store.files(tenant, None, after=None, limit=100, newest_first=False))
            assert found == self._files_of(tenant)
            mine = {**self.open, **self.over}
            listed = self.run(self.store.batches(tenant, after=None, limit=100))
            assert {b.batch_id: b for b in listed} == {i: b for i, b in mine.items() if b.tenant == tenant}
            oldest = self.run(self.store.unfinished(tenant))
            assert oldest == next((batch for batch in self.open.values() if batch.tenant == tenant), None)
        assert {path.name for path in (Path(self.folder.name) / "files").iterdir()} == set(self.known)
        for file_id, (_, content) in self.known.items():
            assert self.store.path(file_id).read_bytes() == content
        for batch_id in self.open:
            lines = {result.line for result in self.results[batch_id]}
            assert self.run(self.store.lines_with_results(batch_id)) == lines
        counts = self.store.counts()
        assert counts.unfinished == Counter(batch.status for batch in self.open.values())
        told = {"succeeded": counts.lines_succeeded, "failed": counts.lines_failed, **counts.ended}
        assert {what: count for what, count in told.items() if count} == self.since_start


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


async def test_pages_follow_each_other(tmp_path: Path) -> None:
    store = BatchStore(tmp_path, BatchesConfig())
    ids = []
    for number in range(5):
        file = StoredFile(
            file_id=f"file-{number}", tenant="", filename="f", purpose=FilePurpose.BATCH, num_bytes=1,
            created_at=1.0, expires_at=9.0,
        )  # fmt: skip
        await store.add_file(file, [b"x"])
        ids.append(file.file_id)
    page = await store.files("", FilePurpose.BATCH, after="file-3", limit=2, newest_first=True)
    assert [file.file_id for file in page] == ["file-2", "file-1"]
    page = await store.files("", None, after="file-3", limit=2, newest_first=False)
    assert [file.file_id for file in page] == ["file-4"]
    assert await store.files("", FilePurpose.BATCH_OUTPUT, after=None, limit=2, newest_first=False) == []
    with pytest.raises(UnknownFile):
        await store.files("", None, after="file-9", limit=2, newest_first=False)
    with pytest.raises(UnknownBatch):
        await store.batches("", after="batch_9", limit=2)
    store.close()
