"""The offline lane: files of requests, run as batches when nothing else wants the engine, durable line by line."""

from __future__ import annotations

from .batch import Batch, BatchStatus, BatchUsage, FilePurpose, LineProblem, LineResult, StoredFile
from .config import BatchesConfig
from .service import Batches

__all__ = [
    "Batch",
    "BatchStatus",
    "BatchUsage",
    "Batches",
    "BatchesConfig",
    "FilePurpose",
    "LineProblem",
    "LineResult",
    "StoredFile",
]
