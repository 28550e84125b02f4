"""Explains misses in a thread of its own: a request's body in, what broke out. Nobody ever waits for it.

Each tenant's requests are compared with that tenant's alone. A queue that is full drops the newest: a miss is then not
explained, and that is counted.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...prompt_lint.findings import Finding
from ...prompt_lint.live import LiveDiagnosis, PromptReading
from ...prompt_lint.request import Request, shape_of

logger = logging.getLogger(__name__)

MAX_WAITING = 256
MAX_TENANTS = 32
KEPT_CHARS = 4_000_000  # a tenant's
KEPT_REQUESTS = 256


@dataclass(eq=False)
class Question:
    """One request to be explained. ``done`` is set when ``finding`` is what it will be."""

    turn_id: str
    tenant: str
    lineage: str | None
    content: Callable[[], dict[str, Any]]
    finding: Finding | None = None
    done: threading.Event = field(default_factory=threading.Event)


class MissExplainer:
    """Owns the thread, and what it remembers of each tenant's requests."""

    def __init__(self, reading: PromptReading | None = None) -> None:
        self._reading = reading if reading is not None else PromptReading()
        self._tenants: OrderedDict[str, LiveDiagnosis] = OrderedDict()
        self._waiting: queue.Queue[Question | None] = queue.Queue(MAX_WAITING)
        self.num_dropped = 0
        self.num_failed = 0
        self._thread = threading.Thread(target=self._run, name="sessile-misses", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> bool:
        """Explain it when there is time. False: there are too many already, and it will not be."""
        try:
            self._waiting.put_nowait(question)
        except queue.Full:
            self.num_dropped += 1
            return False
        return True

    def settle(self, timeout_s: float) -> None:
        """Wait until all that was asked before is explained. For tests."""
        last = Question("", "", None, dict)
        self._waiting.put(last)
        last.done.wait(timeout_s)

    def close(self) -> None:
        """Drop what waits, and end the thread."""
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                break
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (question := self._waiting.get()) is not None:
            try:
                question.finding = self._explain(question)
            except Exception:
                self.num_failed += 1
                logger.debug("a request could not be explained", exc_info=True)
            question.done.set()

    def _explain(self, question: Question) -> Finding | None:
        body = question.content()
        shape = shape_of(body)
        if shape is None:
            return None
        request = Request(body, shape, session=question.lineage)
        return self._of_tenant(question.tenant).feed(request)

    def _of_tenant(self, tenant: str) -> LiveDiagnosis:
        if tenant not in self._tenants:
            self._tenants[tenant] = LiveDiagnosis(
                kept_chars=KEPT_CHARS, kept_requests=KEPT_REQUESTS, reading=self._reading
            )
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        return self._tenants[tenant]
