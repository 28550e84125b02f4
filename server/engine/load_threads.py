"""The threads that load blocks, and what becomes of a load that hangs.

One thread does the loads that ask the shared tier, which may be slow, one all others. A read that the system does not
return from cannot be ended: its load is given up, another thread takes the place of the one that hangs, and the blocks
of the load stay in use until the read comes back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from ...sessions.cache.tiers import Tier
from .block_loads import BlockLoad, FinishedLoad

CLOSING_S = 5.0  # for the load in hand, at the end


class LoadThreads:
    """The engine's step owns it; ``load`` runs on the threads, and never raises."""

    def __init__(self, load: Callable[[BlockLoad], FinishedLoad]) -> None:
        self._load = load
        self._ended: queue.SimpleQueue[FinishedLoad] = queue.SimpleQueue()
        self._under_way: dict[BlockLoad, bool] = {}  # and whether it asks the shared tier
        self._given_up: set[BlockLoad] = set()
        self._returned: list[BlockLoad] = []
        self._local = self._new_thread("kv-load")
        self._remote = self._new_thread("kv-load-shared")

    @property
    def num_given_up_blocks(self) -> int:
        return sum(len(load.block_ids) for load in (*self._given_up, *self._returned))

    def start(self, load: BlockLoad) -> None:
        """Do ``load`` after those before it."""
        asks_shared = any(source.tier is Tier.SHARED for source in load.sources)
        self._under_way[load] = asks_shared
        (self._remote if asks_shared else self._local).put(load)

    def finished(self) -> list[FinishedLoad]:
        """The loads that ended since the last call, without those that were given up."""
        finished: list[FinishedLoad] = []
        while not self._ended.empty():
            ended = self._ended.get()
            if ended.load in self._given_up:
                self._given_up.remove(ended.load)
                self._returned.append(ended.load)
            else:
                del self._under_way[ended.load]
                finished.append(ended)
        return finished

    def give_up(self, before: float) -> list[BlockLoad]:
        """Give up what is under way with a deadline before that time, on the clock of ``time.monotonic``."""
        late = [load for load in self._under_way if load.deadline < before]
        for load in late:
            asks_shared = self._under_way.pop(load)
            self._given_up.add(load)
            if asks_shared and self._remote.does(load):
                self._remote = self._replaced(self._remote, "kv-load-shared")
            elif self._local.does(load):
                self._local = self._replaced(self._local, "kv-load")
        return late

    def returned(self) -> list[BlockLoad]:
        """The loads that were given up and have ended since the last call."""
        returned, self._returned = self._returned, []
        return returned

    def close(self) -> None:
        """Do what is wanted, then leave. A read that hangs is not waited for."""
        self._local.close()
        self._remote.close()

    def _new_thread(self, name: str) -> _LoadThread:
        return _LoadThread(name, self._load, self._ended)

    def _replaced(self, stuck: _LoadThread, name: str) -> _LoadThread:
        """A thread that goes on with what waits behind ``stuck``."""
        thread = self._new_thread(name)
        for load in stuck.take_waiting():
            thread.put(load)
        return thread


class _LoadThread:
    """Does loads in order."""

    def __init__(
        self, name: str, load: Callable[[BlockLoad], FinishedLoad], ended: queue.SimpleQueue[FinishedLoad]
    ) -> None:
        self._wanted: queue.SimpleQueue[BlockLoad | None] = queue.SimpleQueue()
        self._load = load
        self._ended = ended
        self._current: BlockLoad | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, load: BlockLoad) -> None:
        self._wanted.put(load)

    def does(self, load: BlockLoad) -> bool:
        """Whether the thread is at ``load`` now."""
        return self._current is load

    def take_waiting(self) -> list[BlockLoad]:
        """What the thread has not begun; it leaves when it has done what it is at."""
        waiting: list[BlockLoad] = []
        while not self._wanted.empty():
            load = self._wanted.get()
            if load is not None:
                waiting.append(load)
        self._wanted.put(None)
        return waiting

    def close(self) -> None:
        self._wanted.put(None)
        self._thread.join(CLOSING_S)

    def _run(self) -> None:
        while (load := self._wanted.get()) is not None:
            self._current = load
            self._ended.put(self._load(load))
            self._current = None
