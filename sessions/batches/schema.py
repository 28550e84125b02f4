"""The tables of the batch store, and how older files become this version's. A released step is never edited."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sqlite_utils import Database

from ..store.migrations import apply_steps
from .failures import damaged


def _m001_files_and_batches(database: Database) -> None:
    """``number`` is the order of coming; ``value`` a Struct as JSON, with its CRC-32 beside it."""
    owned = {"number": int, "tenant": str, "value": bytes, "checksum": int}
    database.table("files").create(
        {**owned, "file_id": str, "purpose": str, "num_bytes": int, "expires_at": float},
        pk="number",
        not_null={"file_id", "tenant", "purpose", "num_bytes", "expires_at", "value", "checksum"},
        strict=True,
    )
    database.table("files").create_index(["file_id"], unique=True, index_name="files_by_id")
    database.table("files").create_index(["tenant", "number"], index_name="files_by_tenant")
    database.table("batches").create(
        {**owned, "batch_id": str, "input_file_id": str, "is_over": int, "over_at": float},
        pk="number",
        not_null={"batch_id", "tenant", "input_file_id", "is_over", "value", "checksum"},
        strict=True,
    )
    database.table("batches").create_index(["batch_id"], unique=True, index_name="batches_by_id")
    database.table("batches").create_index(["tenant", "number"], index_name="batches_by_tenant")
    database.table("batches").create_index(["is_over", "number"], index_name="batches_by_end")
    database.table("results").create(
        {"number": int, "batch_id": str, "line": int, "succeeded": int, "body": bytes, "checksum": int},
        pk="number",
        not_null={"batch_id", "line", "succeeded", "body", "checksum"},
        strict=True,
    )
    database.table("results").create_index(["batch_id", "line"], unique=True, index_name="results_by_line")


_STEPS = (("m001_files_and_batches", _m001_files_and_batches),)
SCHEMA_VERSION = len(_STEPS)


def migrate(database: Database, path: Path) -> None:
    """Bring the tables of the file at ``path`` to this version, each step in a transaction of its own.

    Raises:
        StoreError: the file was written by a newer version, or is damaged.
    """
    apply_steps(database, "sessile.batches", _STEPS, "the batch store", partial(damaged, path))
