"""What can be wrong with a request about files or batches. They are RequestErrors with a status of their own."""

from __future__ import annotations

from ..errors import RequestError


class UnknownFile(RequestError):
    """There is no such file of this tenant, or its time is over."""

    def __init__(self, file_id: str, field: str = "file_id") -> None:
        super().__init__(
            f"there is no file {file_id!r}", field=field, remedy="list your files; they are kept for --batches-ttl-s"
        )


class UnknownBatch(RequestError):
    """There is no such batch of this tenant, or its time is over."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(
            f"there is no batch {batch_id!r}",
            field="batch_id",
            remedy="list your batches; they are kept for --batches-ttl-s after their end",
        )


class StorageFull(RequestError):
    """The tenant may keep no more files, or no more bytes."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, field="file", remedy=remedy)


class FileInUse(RequestError):
    """A batch that is not over reads this file."""

    def __init__(self, file_id: str, batch_id: str) -> None:
        super().__init__(
            f"batch {batch_id} reads file {file_id}", field="file_id", remedy="wait for its end, or cancel it"
        )


class BatchIsOver(RequestError):
    """A batch that has ended cannot be cancelled."""

    def __init__(self, batch_id: str, status: str) -> None:
        super().__init__(f"batch {batch_id} is {status}", field="batch_id", remedy="there is nothing left to cancel")
