"""What the server answers in the shapes of OpenAI's files and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ....sessions.batches.batch import Batch, BatchStatus, BatchUsage, FilePurpose, StoredFile


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file. It is deleted at ``expires_at``."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: FilePurpose
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/files``."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``DELETE /v1/files/{file_id}``."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a batch's file. ``line``: from 1; null for the file as a whole."""

    code: str
    message: str
    line: int | None
    param: str | None


class BatchProblems(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, the first 100 at most."""

    object: Literal["list"] = "list"
    data: list[BatchProblem]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Lines: all, with an answer, with an error."""

    total: int
    completed: int
    failed: int


class CachedTokens(msgspec.Struct, frozen=True):
    """Of the input."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct, frozen=True):
    """Of the output."""

    reasoning_tokens: int


class BatchTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all lines that have ended; each line counts once."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are seconds since the epoch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str
    errors: BatchProblems | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchTokens
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``GET /v1/batches``."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def file_object(file: StoredFile) -> FileObject:
    """A file in OpenAI's words."""
    return FileObject(
        id=file.file_id,
        bytes=file.num_bytes,
        created_at=int(file.created_at),
        expires_at=int(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
    )


def file_list(files: Sequence[StoredFile], limit: int) -> FileList:
    """A page of at most ``limit``; one file more says that there is another page."""
    shown = [file_object(file) for file in files[:limit]]
    first, last = _ends([file.id for file in shown])
    return FileList(data=shown, first_id=first, last_id=last, has_more=len(files) > limit)


def batch_object(batch: Batch) -> BatchObject:
    """A batch in OpenAI's words."""
    return BatchObject(
        id=batch.batch_id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=_problems(batch),
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=int(batch.created_at),
        in_progress_at=_second(batch, BatchStatus.IN_PROGRESS),
        expires_at=int(batch.expires_at),
        finalizing_at=_second(batch, BatchStatus.FINALIZING),
        completed_at=_second(batch, BatchStatus.COMPLETED),
        failed_at=_second(batch, BatchStatus.FAILED),
        expired_at=_second(batch, BatchStatus.EXPIRED),
        cancelling_at=_second(batch, BatchStatus.CANCELLING),
        cancelled_at=_second(batch, BatchStatus.CANCELLED),
        request_counts=RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        usage=_tokens(batch.usage),
        metadata=None if batch.metadata is None else dict(batch.metadata),
    )


def batch_list(batches: Sequence[Batch], limit: int) -> BatchList:
    """A page of at most ``limit``; one batch more says that there is another page."""
    shown = [batch_object(batch) for batch in batches[:limit]]
    first, last = _ends([batch.id for batch in shown])
    return BatchList(data=shown, first_id=first, last_id=last, has_more=len(batches) > limit)


def _ends(ids: Sequence[str]) -> tuple[str | None, str | None]:
    return (ids[0], ids[-1]) if ids else (None, None)


def _second(batch: Batch, status: BatchStatus) -> int | None:
    return int(batch.entered[status]) if status in batch.entered else None


def _problems(batch: Batch) -> BatchProblems | None:
    if not batch.problems:
        return None
    return BatchProblems(
        data=[
            BatchProblem(code=problem.code, message=problem.message, line=problem.line, param=problem.param)
            for problem in batch.problems
        ]
    )


def _tokens(usage: BatchUsage) -> BatchTokens:
    return BatchTokens(
        input_tokens=usage.input_tokens,
        input_tokens_details=CachedTokens(usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=ReasoningTokens(usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )
