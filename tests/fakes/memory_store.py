"""A shared object store in memory that hangs, refuses and fails on command."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import numpy as np

from sessile.sessions.cache.object_store import Completion, Task
from sessile.sessions.cache.tiers import Block


class MemoryStore:
    """Operations end at once, or when ``resume`` is called while ``hangs``."""

    def __init__(self, objects: dict[bytes, bytes]) -> None:
        self.objects = objects
        self.hangs = self.refuses = self.fails = False
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self.waiting: list[Callable[[], Completion]] = []
        self.number = 0
        self.closed = False
        self.lock = threading.Lock()

    def descriptors(self) -> Sequence[int]:
        return (self.event,)

    def submit(self, kind: str, work: Callable[[], Sequence[bool]]) -> Task:
        if self.refuses:
            raise RuntimeError("no such server")
        with self.lock:
            self.number += 1
            task = Task((kind, self.number))
            self.waiting.append(lambda: Completion(task, tuple(work())))
        os.eventfd_write(self.event, 1)
        return task

    def submit_store(self, keys: Sequence[bytes], buffers: Sequence[Block]) -> Task:
        def work() -> list[bool]:
            if not self.fails:
                self.objects.update((k, bytes(b)) for k, b in zip(keys, buffers, strict=True))
            return [not self.fails] * len(keys)

        return self.submit("store", work)

    def submit_contains(self, keys: Sequence[bytes]) -> Task:
        return self.submit("contains", lambda: [key in self.objects for key in keys])

    def submit_load(self, keys: Sequence[bytes], buffers: Sequence[Block]) -> Task:
        def work() -> list[bool]:
            for key, buffer in zip(keys, buffers, strict=True):
                content = self.objects.get(key, b"")
                buffer[: len(content)] = np.frombuffer(content, np.uint8)[: len(buffer)]
            return [key in self.objects for key in keys]

        return self.submit("load", work)

    def completed(self) -> list[Completion]:
        if self.hangs:
            return []
        try:
            os.eventfd_read(self.event)
        except BlockingIOError:
            return []
        with self.lock:
            waiting, self.waiting = self.waiting, []
        return [work() for work in waiting]

    def close(self) -> None:
        self.closed = True
        os.close(self.event)
