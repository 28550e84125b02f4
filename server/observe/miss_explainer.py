"""Explains misses in a thread of its own: a request's body in, what broke out. Nobody ever waits for it.

Each tenant's requests are compared with that tenant's alone. A queue that is full drops the newest: a miss is then not
explained, and that is counted.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ...prompt_lint.findings import Finding
from ...prompt_lint.live import LiveDiagnosis, PromptReading
from ...prompt_lint.request import ApiShape, Request, shape_of

logger = logging.getLogger(__name__)

MAX_WAITING = 256
MAX_TENANTS = 32
KEPT_CHARS = 4_000_000  # a tenant's
ALL_KEPT_CHARS = 16_000_000  # of all tenants: those that sent nothing for longest are forgotten
KEPT_REQUESTS = 256


@dataclass(eq=False)
class Question:
    """One request to be explained. ``done`` is set when ``finding`` is what it will be.

    ``token_ids``: the prompt as the model is given it. ``asked_at``: seconds since the epoch, on the clock on the wall.
    """

    turn_id: str
    tenant: str
    lineage: str | None
    content: Callable[[], dict[str, Any]]
    token_ids: Sequence[int] = ()
    asked_at: float | None = None
    finding: Finding | None = None
    request: Request | None = None  # as the thread read it
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the model said to a question that was asked before."""

    question: Question
    token_ids: Sequence[int]


class MissExplainer:
    """Owns the thread, and what it remembers of each tenant's requests."""

    def __init__(self, reading: PromptReading | None = None) -> None:
        self._reading = reading if reading is not None else PromptReading()
        self._tenants: OrderedDict[str, LiveDiagnosis] = OrderedDict()
        self._waiting: queue.Queue[Question | _Answer | None] = queue.Queue(MAX_WAITING)
        self._num_asked = 0  # who asks counts it
        self._num_done = 0  # the thread counts it
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
        self._num_asked += 1
        return True

    def answered(self, question: Question, token_ids: Sequence[int]) -> None:
        """Tell what the model said: what is sent next may say the same in other tokens. Forgotten if there is much."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(_Answer(question, token_ids))

    @property
    def num_waiting(self) -> int:
        """Questions that are not explained yet. For the one that asks them: it alone counts those."""
        return self._num_asked - self._num_done

    def settle(self, timeout_s: float) -> None:
        """Wait until all that was asked before is explained. For tests."""
        last = Question("", "", None, dict)
        self._num_asked += 1
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
        self._num_asked = self._num_done  # what was dropped waits no more

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, _Answer):
                if item.question.request is not None:
                    item.question.request.response_token_ids = array("i", item.token_ids)
                continue
            try:
                item.finding = self._explain(item)
            except Exception:
                self.num_failed += 1
                logger.debug("a request could not be explained", exc_info=True)
            self._num_done += 1
            item.done.set()

    def _explain(self, question: Question) -> Finding | None:
        body = question.content()
        shape = shape_of(body)
        if shape is None:
            return None
        request = Request(
            body,
            shape,
            session=question.lineage,
            timestamp=_on_the_wall(question.asked_at),
            rendered_token_ids=None if shape is ApiShape.TOKENS else array("i", question.token_ids),
        )
        question.request = request
        finding = self._of_tenant(question.tenant).feed(request)
        self._forget_tenants()
        return finding

    def _of_tenant(self, tenant: str) -> LiveDiagnosis:
        if tenant not in self._tenants:
            self._tenants[tenant] = LiveDiagnosis(
                kept_chars=KEPT_CHARS, kept_requests=KEPT_REQUESTS, reading=self._reading
            )
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        return self._tenants[tenant]

    def _forget_tenants(self) -> None:
        while len(self._tenants) > 1 and sum(one.kept_chars for one in self._tenants.values()) > ALL_KEPT_CHARS:
            self._tenants.popitem(last=False)


def _on_the_wall(at: float | None) -> float | None:
    """Seconds that read in UTC as a clock in this place reads at ``at``: what a chat template here prints."""
    if at is None:
        return None
    offset = datetime.fromtimestamp(at).astimezone().utcoffset()
    return at + (offset.total_seconds() if offset is not None else 0.0)
