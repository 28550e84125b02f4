"""A server's diagnosis runs for ever: it holds what it says it holds, and still finds what is recent."""

from __future__ import annotations

import gc
from typing import Any

from sessile.prompt_lint.lineage import Entry
from sessile.prompt_lint.live import LiveDiagnosis
from sessile.prompt_lint.request import ApiShape, Request

KEPT = 8
RULES = "Follow every rule of the handbook. " * 200


def request(session: str, clock: str, *turns: str) -> Request:
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(turns)]
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "system", "content": f"{clock}\n{RULES}"}, *talk]}
    return Request(body, ApiShape.OPENAI_CHAT, session=session)


def entries_alive() -> int:
    gc.collect()
    return sum(type(found) is Entry for found in gc.get_objects())  # asks nothing of strangers


def test_requests_that_were_evicted_are_freed() -> None:
    before = entries_alive()
    diagnosis = LiveDiagnosis(kept_chars=10**9, kept_requests=KEPT)
    for number in range(10 * KEPT):
        diagnosis.feed(request(f"session {number}", "noon", f"question {number}", "answer", f"then {number}"))
    assert entries_alive() - before <= KEPT + 16, "those kept, and the first ones of the latest sessions"
    finding = diagnosis.feed(request("session 79", "one o'clock", "question 79", "answer", "then 79", "and", "so on"))
    assert finding is not None
    assert finding.location.path == "messages[0].content"


def test_characters_bound_them_as_well() -> None:
    before = entries_alive()
    diagnosis = LiveDiagnosis(kept_chars=20 * len(RULES), kept_requests=10_000)
    for number in range(100):
        diagnosis.feed(request(f"session {number}", "noon", f"question {number}"))
    assert entries_alive() - before <= 20 + 16
