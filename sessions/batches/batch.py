"""Files and batches as values, and the ways from one status to the next."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class FilePurpose(enum.StrEnum):
    """What a file is for."""

    BATCH = "batch"  # requests, a line each
    BATCH_OUTPUT = "batch_output"  # answers, written by this server


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a tenant. Times are seconds since the epoch; ``expires_at``: it is deleted then."""

    file_id: str
    tenant: str
    filename: str
    purpose: FilePurpose
    num_bytes: int
    created_at: float
    expires_at: float


class BatchStatus(enum.StrEnum):
    """How far a batch has come.

    ``validating`` → ``failed`` | ``in_progress`` → ``finalizing`` → ``completed`` | ``expired`` | ``failed``;
    ``validating`` | ``in_progress`` → ``cancelling`` → ``cancelled``.
    """

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """Nothing will change any more."""
        return self in _OVER


_OVER = frozenset({BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


class LineProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch cannot run. ``line``: of its file, from 1; None for the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a line, or of all lines whose results are kept; each line counts once, however often it was begun."""

    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of the output

    def __add__(self, other: BatchUsage) -> BatchUsage:
        return BatchUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


class LineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of line ``line``: ``body`` is its line of the output or (not ``succeeded``) error file."""

    line: int
    succeeded: bool
    body: bytes
    usage: BatchUsage = BatchUsage()


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of a tenant. Times are seconds since the epoch.

    ``entered``: when it came to each status. ``expires_at``: lines that have not ended then are given up.
    ``ending``: what it becomes when its files are written.
    """

    batch_id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: Mapping[str, str] | None
    model: str
    created_at: float
    expires_at: float
    status: BatchStatus = BatchStatus.VALIDATING
    ending: BatchStatus = BatchStatus.COMPLETED
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: BatchUsage = BatchUsage()
    problems: tuple[LineProblem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    entered: Mapping[BatchStatus, float] = {}

    def at(self, status: BatchStatus, now: float, **changes: object) -> Batch:
        """The batch when it comes to ``status``."""
        entered = {**self.entered, status: now}
        return msgspec.structs.replace(self, status=status, entered=entered, **changes)

    def with_result(self, result: LineResult) -> Batch:
        """The batch after one more line has ended."""
        return msgspec.structs.replace(
            self,
            completed=self.completed + result.succeeded,
            failed=self.failed + (not result.succeeded),
            usage=self.usage + result.usage,
        )
