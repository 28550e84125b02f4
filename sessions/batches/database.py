"""The batch database: one SQLite connection, used by one thread at a time."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import CapacityError
from ..store.files import synchronous
from ..store.rows import first
from .batch import Batch, FilePurpose, LineResult, StoredFile
from .config import BatchesConfig
from .errors import FileInUse, StorageFull, UnknownBatch, UnknownFile
from .failures import batch_store_errors, damaged
from .schema import migrate

_Value = TypeVar("_Value", StoredFile, Batch)
_RETRY_FULL_S = 60.0
BatchChange = Callable[[Batch], Batch]


class BatchDatabase:
    """Files, batches and the results of lines. Every method raises StoreError when SQLite fails it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            path.touch(mode=0o600)  # what is asked in batches is private
            connection = sqlite3.connect(path, check_same_thread=False, timeout=5.0)
            self._database = synchronous(connection)

    def prepare(self) -> None:
        """Check the file and bring the tables to this version."""
        with self._errors():
            problems = [row[0] for row in self._database.execute("PRAGMA quick_check(3)")]
            if problems != ["ok"]:
                raise damaged(self._path, "; ".join(problems))
            self._database.enable_wal()
            migrate(self._database, self._path)

    def close(self) -> None:
        with self._errors():
            self._database.close()

    # -- files --------------------------------------------------------------------------------------------------------

    def require_room(self, tenant: str, num_bytes: int, limits: BatchesConfig) -> None:
        """Raise StorageFull if the tenant may have no file of this size more."""
        with self._errors():
            query = "SELECT count(*), coalesce(sum(num_bytes), 0) FROM files WHERE tenant = ?"
            count, total = self._database.execute(query, [tenant]).fetchone()
        if count >= limits.max_files:
            raise StorageFull(
                f"there are {count} files", f"delete some; {limits.max_files} may be kept (--batches-max-files)"
            )
        if total + num_bytes > limits.max_total_bytes:
            raise StorageFull(
                f"the files would have {total + num_bytes} bytes",
                f"delete some; {limits.max_total_bytes} bytes may be kept (--batches-max-total-bytes)",
            )

    def add_file(self, file: StoredFile, limits: BatchesConfig) -> None:
        """Keep a file, whose content is on disk. Raises StorageFull, see ``require_room``."""
        with self._transaction():
            self.require_room(file.tenant, file.num_bytes, limits)
            self._insert_file(file)

    def _insert_file(self, file: StoredFile) -> None:
        columns = {name: getattr(file, name) for name in ("file_id", "tenant", "num_bytes", "expires_at")}
        self._database.table("files").insert(columns | {"purpose": file.purpose.value} | _sealed(file))

    def file(self, tenant: str, file_id: str) -> StoredFile:
        """A file of this tenant. Raises UnknownFile."""
        with self._errors():
            row = first(self._database.table("files").rows_where("file_id = ? AND tenant = ?", [file_id, tenant]))
        if row is None:
            raise UnknownFile(file_id)
        return self._opened(row, StoredFile)

    def files(
        self, tenant: str, purpose: FilePurpose | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """Files of a tenant in the order of their coming, behind the file ``after``. Raises UnknownFile."""
        where, values = ["tenant = ?"], [tenant]
        if purpose is not None:
            where.append("purpose = ?")
            values.append(purpose.value)
        with self._errors():
            return self._page("files", StoredFile, where, values, after, limit, newest_first=newest_first)

    def all_file_ids(self) -> set[str]:
        """The ids of all tenants' files."""
        with self._errors():
            return {row[0] for row in self._database.execute("SELECT file_id FROM files")}

    def delete_file(self, tenant: str, file_id: str) -> None:
        """Forget a file. Raises UnknownFile, and FileInUse while a batch reads it."""
        with self._transaction():
            self.file(tenant, file_id)
            query = "SELECT batch_id FROM batches WHERE input_file_id = ? AND NOT is_over"
            for (batch_id,) in self._database.execute(query, [file_id]):
                raise FileInUse(file_id, batch_id)
            self._database.table("files").delete_where("file_id = ?", [file_id])

    # -- batches ------------------------------------------------------------------------------------------------------

    def add_batch(self, batch: Batch, limits: BatchesConfig) -> Batch:
        """Keep a new batch; returns it. Raises UnknownFile without its input, CapacityError with too many open ones."""
        with self._transaction():
            try:
                self.file(batch.tenant, batch.input_file_id)
            except UnknownFile as error:
                raise UnknownFile(batch.input_file_id, "input_file_id") from error
            query = "SELECT count(*) FROM batches WHERE tenant = ? AND NOT is_over"
            (count,) = self._database.execute(query, [batch.tenant]).fetchone()
            if count >= limits.max_unfinished:
                raise CapacityError(
                    f"{count} batches are not over yet",
                    remedy="send it again when one of them is over (--batches-max-unfinished)",
                    retry_after_s=_RETRY_FULL_S,
                )
            self._database.table("batches").insert(_row_of(batch))
        return batch

    def batch(self, tenant: str, batch_id: str) -> Batch:
        """A batch of this tenant. Raises UnknownBatch."""
        with self._errors():
            found = self._opened(self._batch_row(batch_id), Batch)
        if found.tenant != tenant:
            raise UnknownBatch(batch_id)
        return found

    def batches(self, tenant: str, *, after: str | None, limit: int) -> list[Batch]:
        """Batches of a tenant, newest first, behind the batch ``after``. Raises UnknownBatch."""
        with self._errors():
            return self._page("batches", Batch, ["tenant = ?"], [tenant], after, limit, newest_first=True)

    def unfinished(self, tenant: str) -> Batch | None:
        """The oldest batch of a tenant that is not over."""
        with self._errors():
            where = "tenant = ? AND NOT is_over"
            row = first(self._database.table("batches").rows_where(where, [tenant], order_by="number", limit=1))
            return None if row is None else self._opened(row, Batch)

    def readable_unfinished(self) -> list[Batch]:
        """The batches that are not over, of all tenants. A damaged one is left out: who runs it says so."""
        with self._errors():
            rows = list(self._database.table("batches").rows_where("NOT is_over"))
        return [self._opened(row, Batch) for row in rows if _is_intact(row)]

    def tenants_with_work(self) -> list[str]:
        """The tenants that have batches which are not over, the one that waits longest first."""
        with self._errors():
            query = "SELECT tenant FROM batches WHERE NOT is_over GROUP BY tenant ORDER BY min(number)"
            return [row[0] for row in self._database.execute(query)]

    def change(self, batch_id: str, change: BatchChange) -> Batch:
        """Make a change of a batch as it stands now durable. Raises UnknownBatch, and what ``change`` raises."""
        with self._transaction():
            return self._change(batch_id, change)

    def _change(self, batch_id: str, change: BatchChange) -> Batch:
        row = self._batch_row(batch_id)
        after = change(self._opened(row, Batch))
        self._database.table("batches").insert(_row_of(after) | {"number": row["number"]}, replace=True)
        return after

    def _batch_row(self, batch_id: str) -> dict[str, Any]:
        row = first(self._database.table("batches").rows_where("batch_id = ?", [batch_id]))
        if row is None:
            raise UnknownBatch(batch_id)
        return row

    # -- results ------------------------------------------------------------------------------------------------------

    def record(self, batch_id: str, results: Sequence[LineResult]) -> Batch:
        """Keep what became of lines, and count it; a line that has a result already keeps it and counts no more."""
        with self._transaction():
            fresh = [result for result in results if not self._has_result(batch_id, result.line)]
            self._database.table("results").insert_all(
                {
                    "batch_id": batch_id,
                    "line": result.line,
                    "succeeded": int(result.succeeded),
                    "body": result.body,
                    "checksum": zlib.crc32(result.body),
                }
                for result in fresh
            )

            def counted(batch: Batch) -> Batch:
                for result in fresh:
                    batch = batch.with_result(result)
                return batch

            return self._change(batch_id, counted)

    def _has_result(self, batch_id: str, line: int) -> bool:
        query = "SELECT 1 FROM results WHERE batch_id = ? AND line = ?"
        return self._database.execute(query, [batch_id, line]).fetchone() is not None

    def lines_with_results(self, batch_id: str) -> set[int]:
        """The lines that have ended."""
        with self._errors():
            found = self._database.execute("SELECT line FROM results WHERE batch_id = ?", [batch_id])
            return {row[0] for row in found}

    def results(self, batch_id: str, *, succeeded: bool) -> Generator[bytes, None, None]:
        """The lines of the output file, or of the error file, in the order in which they ended; to be closed."""
        query = "SELECT line, body, checksum FROM results WHERE batch_id = ? AND succeeded = ? ORDER BY number"
        with self._errors():
            for line, body, checksum in self._database.execute(query, [batch_id, int(succeeded)]):
                if zlib.crc32(body) != checksum:
                    raise damaged(self._path, f"the result of line {line} of {batch_id} does not match its checksum")
                yield body

    def finish(self, batch_id: str, files: Iterable[StoredFile], change: BatchChange) -> Batch:
        """The end of a batch: its files, whose contents are on disk, take the place of its results."""
        with self._transaction():
            for file in files:
                self._insert_file(file)
            self._database.table("results").delete_where("batch_id = ?", [batch_id])
            return self._change(batch_id, change)

    def prune(self, now: float, ttl_s: float) -> None:
        """Forget files whose time is over, unless a batch reads them, and batches that ended ``ttl_s`` ago."""
        with self._transaction():
            reading = "SELECT input_file_id FROM batches WHERE NOT is_over"
            self._database.table("files").delete_where(f"expires_at <= ? AND file_id NOT IN ({reading})", [now])
            self._database.table("batches").delete_where("is_over AND over_at <= ?", [now - ttl_s])

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _page(
        self,
        table: str,
        kind: type[_Value],
        where: list[str],
        values: list[Any],
        after: str | None,
        limit: int,
        *,
        newest_first: bool,
    ) -> list[_Value]:
        id_column = "file_id" if table == "files" else "batch_id"
        if after is not None:
            clause = f"{id_column} = ? AND tenant = ?"
            row = first(self._database.table(table).rows_where(clause, [after, values[0]]))
            if row is None:
                raise UnknownFile(after, "after") if table == "files" else UnknownBatch(after)
            where.append("number < ?" if newest_first else "number > ?")
            values.append(row["number"])
        order = "number DESC" if newest_first else "number"
        rows = self._database.table(table).rows_where(" AND ".join(where), values, order_by=order, limit=limit)
        return [self._opened(row, kind) for row in rows]

    def _opened(self, row: dict[str, Any], kind: type[_Value]) -> _Value:
        if not _is_intact(row):
            raise damaged(self._path, f"row {row['number']} does not match its checksum")
        return msgspec.json.decode(row["value"], type=kind)

    def _errors(self) -> Any:
        return batch_store_errors(self._path)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors(), self._database.atomic():
            yield


def _is_intact(row: dict[str, Any]) -> bool:
    return bool(zlib.crc32(row["value"]) == row["checksum"])


def _row_of(batch: Batch) -> dict[str, Any]:
    return {
        "batch_id": batch.batch_id,
        "tenant": batch.tenant,
        "input_file_id": batch.input_file_id,
        "is_over": int(batch.status.is_over),
        "over_at": batch.entered.get(batch.status, batch.created_at) if batch.status.is_over else None,
        **_sealed(batch),
    }


def _sealed(value: StoredFile | Batch) -> dict[str, Any]:
    encoded = msgspec.json.encode(value)
    return {"value": encoded, "checksum": zlib.crc32(encoded)}
