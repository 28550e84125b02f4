"""Slow work on cached paths, beside the step: writing them where they outlive the process, or to and from files.

A job's path is locked while the thread works on it: blocks of a locked path are whole and change no more, so the thread
may read them as they lie in the pool.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from ...sessions.errors import CapacityError, RequestError, SessileError
from .cache_messages import CacheAnswer, CacheResponse, CallError, CallFailed

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class PathJob:
    """``work`` runs on the thread; ``finish`` gets what it returned and runs on the step's side, whatever happened:
    None stands for a failure, whose answer is made from the error."""

    call_id: int
    work: Callable[[], Any]
    finish: Callable[[Any], CacheResponse | None]


class PathJobs:
    """Does jobs one after another. The engine's step owns it."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[PathJob | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[PathJob, Any, CallFailed | None]] = queue.SimpleQueue()
        self._num_open = 0
        self._thread: threading.Thread | None = None

    @property
    def num_open(self) -> int:
        """Jobs whose answer was not taken yet."""
        return self._num_open

    def start(self, job: PathJob) -> None:
        """Do ``job`` after those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-paths", daemon=True)
            self._thread.start()
        self._num_open += 1
        self._wanted.put(job)

    def take_answers(self) -> list[CacheAnswer]:
        """The answers of the jobs that ended since the last call."""
        answers: list[CacheAnswer] = []
        while not self._done.empty():
            job, result, failed = self._done.get()
            self._num_open -= 1
            try:
                response = job.finish(result)
                answer = failed or response
                assert answer is not None, "a job that succeeds has an answer"
            except SessileError as error:
                answer = failure(error)
            answers.append(CacheAnswer(job.call_id, answer))
        return answers

    def close(self) -> None:
        """Do what is wanted, then leave."""
        if self._thread is not None:
            self._wanted.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._wanted.get()) is not None:
            try:
                self._done.put((job, job.work(), None))
            except SessileError as error:
                self._done.put((job, None, failure(error)))
            except Exception as error:  # whoever asked must not wait for ever, nor the path stay locked
                logger.exception("work on a cached path failed")
                failed = CallFailed(kind=CallError.ENGINE, message=f"{type(error).__name__}: {error}")
                self._done.put((job, None, failed))


def failure(error: SessileError) -> CallFailed:
    """The answer that raises ``error`` again at the front."""
    kind = CallError.ENGINE
    if isinstance(error, RequestError):
        kind = CallError.REQUEST
    elif isinstance(error, CapacityError):
        kind = CallError.CAPACITY
    return CallFailed(kind=kind, message=error.message, field=error.field, remedy=error.remedy)
