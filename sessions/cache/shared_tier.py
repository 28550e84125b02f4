"""The shared tier: blocks that other processes and machines store and load too. Never needed for correctness.

One thread connects, waits for the store's completions and hands results to whoever waits. What the caller gives up
waiting for goes on in the store: its slot of the staging memory stays untouched until the store is done with it.
"""

from __future__ import annotations

import dataclasses
import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from .breaker import CircuitBreaker
from .object_store import Completion, ObjectStore, Task
from .recent_keys import RecentKeys
from .shared_config import SharedConfig, pack
from .staging import Staging
from .tiers import Bandwidth, Entry, LoadOutcome, Tier, TierStats

logger = logging.getLogger(__name__)

_POLL_MS = 50
_REMEMBERED_S = 600.0
_REMEMBERED_KEYS = 1 << 16


@dataclasses.dataclass(slots=True)
class _Pending:
    """An operation under way and what it holds."""

    started: float
    slot: int | None = None
    is_store: bool = False
    key: bytes = b""  # of a store
    result: tuple[bool, ...] | None = None
    abandoned: bool = False  # nobody waits for it any more
    overdue: bool = False  # so late that the store is held for ill


class SharedTier:
    """See ``LowerTier``. ``connect`` makes the object store; it may take long and raise anything."""

    def __init__(
        self,
        connect: Callable[[], ObjectStore],
        config: SharedConfig,
        block_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._patience_s = config.patience_s
        self._clock = clock
        self._block_bytes = block_bytes
        self._blocks_per_entry = pack(block_bytes, config.object_bytes)
        self._staging = Staging(config.staging_bytes, block_bytes, self._blocks_per_entry)
        self._changed = threading.Condition()  # guards all of the following
        self._store: ObjectStore | None = None
        self._pending: dict[Task, _Pending] = {}
        self._breaker = CircuitBreaker(failures_to_open=3, clock=clock)
        self._closing = False
        self._seen = RecentKeys(_REMEMBERED_S, _REMEMBERED_KEYS, clock)  # keys that the store had
        self._counts: dict[str, int] = dict.fromkeys(
            ("hits", "misses", "corrupt", "errors", "late", "stored", "rejected", "read_bytes", "written_bytes"), 0
        )
        self._reading, self._writing = Bandwidth(), Bandwidth()
        self._thread = threading.Thread(target=self._run, name="shared-tier", daemon=True)
        self._thread.start()

    @property
    def tier(self) -> Tier:
        return Tier.SHARED

    @property
    def blocks_per_entry(self) -> int:
        return self._blocks_per_entry

    @property
    def answers_at_once(self) -> bool:
        return False

    # -- what the I/O thread calls ----------------------------------------------------------------------------------

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """See ``LowerTier``. Waits for the store, at most ``patience_s``; no answer is no."""
        return self.contains_by(keys, self._clock() + self._patience_s)

    def contains_by(self, keys: Sequence[bytes], deadline: float) -> list[bool]:
        """``contains`` that waits until ``deadline`` at most."""
        nothing = [False] * len(keys)
        with self._changed:
            task = self._submit(lambda store: store.submit_contains(keys), None) if keys else None
            if task is None:
                return nothing
            pending = self._pending[task]
            patience_s = max(0.0, deadline - self._clock())
            self._changed.wait_for(lambda: pending.result is not None or self._closing, patience_s)
            if pending.result is None:
                self._abandon(task)
                return nothing
            del self._pending[task]
            return list(pending.result)

    def store(self, entries: Sequence[Entry]) -> list[bool]:
        """See ``LowerTier``. Not taken: the store does not answer, or too much is under way. Waits for nothing."""
        return [self.knows(entry.key) or self._store_one(entry) for entry in entries]

    def knows(self, key: bytes) -> bool:
        """Whether the store was seen to have ``key`` in the last minutes. Asks nobody."""
        with self._changed:
            return key in self._seen

    @property
    def is_usable(self) -> bool:
        """Whether asking is worth while now: the store is connected and answers."""
        with self._changed:
            return self._store is not None and self._breaker.would_allow()

    def _store_one(self, entry: Entry) -> bool:
        with self._changed:
            usable = self._store is not None and self._breaker.would_allow()
            slot = self._staging.claim_for_store() if usable else None
            if slot is None:
                self._counts["rejected"] += 1
                return False
        self._staging.fill(slot, entry)
        with self._changed:
            buffers = [self._staging.object_in(slot)]
            task = self._submit(lambda store: store.submit_store([entry.key], buffers), slot)
            if task is None:
                self._staging.release(slot)
                self._counts["rejected"] += 1
                return False
            self._pending[task].is_store = self._pending[task].abandoned = True
            self._pending[task].key = entry.key
        return True

    def load(self, entries: Sequence[Entry], deadline: float) -> list[LoadOutcome]:
        """See ``LowerTier``. Returns at ``deadline`` whatever the store does."""
        outcomes = [LoadOutcome.LATE] * len(entries)
        waiting = deque(range(len(entries)))
        under_way: dict[Task, int] = {}
        started = self._clock()
        while waiting or under_way:
            with self._changed:
                unsubmitted = self._submit_loads(entries, waiting, under_way)
                for index in unsubmitted:
                    outcomes[index] = LoadOutcome.MISS
                done = [task for task in under_way if self._pending[task].result is not None]
                if not done and (waiting or under_way) and not self._wait_until(deadline):
                    break
            for task in done:
                index = under_way.pop(task)
                outcomes[index] = self._take_over(task, entries[index])
        with self._changed:
            for task in under_way:
                self._abandon(task)
        self._note_load(outcomes, self._clock() - started)
        return outcomes

    def drop(self, keys: Sequence[bytes]) -> None:
        """Nothing: others use them too, and the store's own eviction removes what nobody loads."""

    def stats(self) -> TierStats:
        with self._changed:
            down = "not connected" if self._store is None else ""
            return TierStats(
                capacity_bytes=0,
                used_bytes=0,
                entries=0,
                read_bandwidth=self._reading.bytes_per_second,
                write_bandwidth=self._writing.bytes_per_second,
                unavailable=self._breaker.reason or down,
                **self._counts,
            )

    @property
    def num_quarantined(self) -> int:
        """Slots that the store may still read or write although nobody waits for it."""
        with self._changed:
            return sum(p.abandoned and p.slot is not None and not p.is_store for p in self._pending.values())

    def sync(self) -> None:
        """Return when the store has answered for all that was taken, or ``patience_s`` after it should have."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(p.is_store for p in self._pending.values()), timeout=2 * self._patience_s
            )

    def close(self) -> None:
        self.sync()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=10.0)  # closing a store that hangs may hang too; the thread is a daemon

    # -- parts of a load --------------------------------------------------------------------------------------------

    def _submit_loads(self, entries: Sequence[Entry], waiting: deque[int], under_way: dict[Task, int]) -> list[int]:
        """Submit as many of ``waiting`` as slots are free; returns those that the store does not take at all."""
        refused: list[int] = []
        while waiting:
            slot = self._staging.claim_for_load()
            if slot is None:
                return refused
            index = waiting.popleft()
            key, buffers = entries[index].key, [self._staging.object_in(slot)]
            task = self._submit(lambda store, k=key, b=buffers: store.submit_load([k], b), slot)  # type: ignore[misc]
            if task is None:
                self._staging.release(slot)
                refused.append(index)
            else:
                under_way[task] = index
        return refused

    def _take_over(self, task: Task, entry: Entry) -> LoadOutcome:
        """The outcome of a load that ended; its blocks are copied if they are good."""
        with self._changed:
            pending = self._pending.pop(task)
        slot = pending.slot
        assert slot is not None and pending.result is not None
        if not pending.result[0]:
            outcome = LoadOutcome.MISS
        elif not self._staging.matches(slot, entry):
            outcome = LoadOutcome.CORRUPT
        else:
            self._staging.copy_out(slot, entry)
            outcome = LoadOutcome.HIT
        with self._changed:
            self._staging.release(slot)
            self._seen.forget(entry.key)  # what is missing or damaged is stored again when somebody has it
            if outcome is LoadOutcome.HIT:
                self._seen.note(entry.key)
            self._changed.notify_all()
        return outcome

    def _wait_until(self, deadline: float) -> bool:
        """Wait for any change; False if the deadline has passed. Under the lock."""
        left = deadline - self._clock()
        if left <= 0 or self._closing:
            return False
        self._changed.wait(min(left, _POLL_MS / 1000))
        return True

    def _abandon(self, task: Task) -> None:
        """Nobody waits for ``task`` any more. Under the lock."""
        pending = self._pending[task]
        pending.abandoned = True
        if pending.result is not None:
            self._end(task, pending)

    def _note_load(self, outcomes: list[LoadOutcome], seconds: float) -> None:
        num_bytes = outcomes.count(LoadOutcome.HIT) * self._block_bytes * self._blocks_per_entry
        with self._changed:
            self._counts["hits"] += outcomes.count(LoadOutcome.HIT)
            self._counts["misses"] += outcomes.count(LoadOutcome.MISS)
            self._counts["corrupt"] += outcomes.count(LoadOutcome.CORRUPT)
            self._counts["late"] += outcomes.count(LoadOutcome.LATE)
            self._counts["read_bytes"] += num_bytes
            self._reading.observe(num_bytes, seconds)

    # -- the store --------------------------------------------------------------------------------------------------

    def _submit(self, start: Callable[[ObjectStore], Task], slot: int | None) -> Task | None:
        """Start an operation; None if the store is not to be used now or refuses. Under the lock."""
        if self._store is None or self._closing or not self._breaker.allows():
            return None
        try:
            task = start(self._store)
        except Exception as error:  # noqa: BLE001  what a foreign library raises is a failure of the store
            self._note_error(f"refuses an operation: {error!r}")
            return None
        self._pending[task] = _Pending(self._clock(), slot)
        return task

    def _note_error(self, reason: str) -> None:
        logger.warning("the shared tier %s", reason)
        self._counts["errors"] += 1
        self._breaker.failed(reason)

    def _run(self) -> None:
        """The thread: connect, then pass completions on, until closing."""
        while not self._closing:
            if self._store is None:
                self._try_to_connect()
            else:
                self._pass_completions_on(self._store)
        if self._store is not None:
            try:
                self._store.close()
            except Exception as error:  # noqa: BLE001  see _submit; there is nothing left to do with it
                logger.warning("the shared tier's store does not close: %r", error)

    def _try_to_connect(self) -> None:
        with self._changed:
            if not self._breaker.allows():
                self._changed.wait(_POLL_MS / 1000)
                return
        try:
            store = self._connect()
        except Exception as error:  # noqa: BLE001  see _submit
            with self._changed:
                for _ in range(3):  # a store that cannot be reached is not tried at once again
                    self._breaker.failed(f"cannot connect: {error!r}")
                self._counts["errors"] += 1
            logger.warning("the shared tier cannot connect: %r", error)
            return
        with self._changed:
            self._store = store
            self._breaker.succeeded()
            self._changed.notify_all()

    def _pass_completions_on(self, store: ObjectStore) -> None:
        try:
            poller = select.poll()
            for descriptor in store.descriptors():
                poller.register(descriptor, select.POLLIN)
            poller.poll(_POLL_MS)
            with self._changed:
                for completion in store.completed():
                    self._complete(completion)
                self._note_overdue()
                self._changed.notify_all()
        except Exception as error:  # noqa: BLE001  see _submit
            with self._changed:
                self._note_error(f"loses track of its store: {error!r}")
                self._changed.wait(_POLL_MS / 1000)

    def _complete(self, completion: Completion) -> None:
        """Under the lock."""
        pending = self._pending.get(completion.task)
        if pending is None:
            return
        pending.result = completion.succeeded
        slow = self._clock() - pending.started >= 0.9 * self._patience_s  # what adapters call a miss when they time out
        if slow or (pending.is_store and not all(completion.succeeded)):
            self._breaker.failed("answers too late" if slow else "does not store")
        else:
            self._breaker.succeeded()
        if pending.abandoned:
            self._end(completion.task, pending)

    def _end(self, task: Task, pending: _Pending) -> None:
        """An operation that nobody waits for is over: its slot is usable again. Under the lock."""
        del self._pending[task]
        if pending.slot is not None:
            self._staging.release(pending.slot)
        if pending.is_store:
            stored = bool(pending.result and all(pending.result))
            num_bytes = stored * self._block_bytes * self._blocks_per_entry
            if stored:
                self._seen.note(pending.key)
            self._counts["stored"] += stored
            self._counts["errors"] += not stored
            self._counts["written_bytes"] += num_bytes
            self._writing.observe(num_bytes, self._clock() - pending.started)

    def _note_overdue(self) -> None:
        """A store that hangs says nothing: notice it by the age of what it was given. Under the lock."""
        latest = self._clock() - 1.5 * self._patience_s
        for pending in self._pending.values():
            if pending.result is None and not pending.overdue and pending.started < latest:
                pending.overdue = True
                self._breaker.failed(f"no answer within {1.5 * self._patience_s:g} s")
