from __future__ import annotations

import pytest

from sessile.bench_agent.errors import BenchError
from sessile.bench_agent.workload.plan import (
    Message,
    MessagesPrompt,
    SessionPlan,
    TextPrompt,
    Turn,
    Workload,
    check_session,
    whole_conversations,
)


def turn(text: str, **more: object) -> Turn:
    return Turn(prompt=MessagesPrompt((Message("user", text),)), recorded=Message("assistant", f"re {text}"), **more)


def test_whole_conversations_follow_what_is_continued() -> None:
    session = SessionPlan(
        session_id="s",
        turns=(turn("a"), turn("b", continues=0, after=(0,)), turn("c", continues=0, after=(1,))),
    )
    found = [[message.content for message in messages] for _, messages in whole_conversations(session)]
    assert found == [["a"], ["a", "re a", "b"], ["a", "re a", "c"]]


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ((turn("a", after=(0,)),), "not before it"),
        ((turn("a"), turn("b", continues=0)), "need not be over"),
        ((turn("a"), Turn(prompt=TextPrompt("x"), continues=0, after=(0,))), "whole prompt"),
    ],
)
def test_impossible_sessions_are_refused(turns: tuple[Turn, ...], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        check_session(SessionPlan(session_id="s", turns=turns))


def test_the_hash_is_of_what_is_sent() -> None:
    sessions = (SessionPlan(session_id="s", turns=(turn("a"),)),)
    one = Workload(name="one", format="native", sessions=sessions)
    other = Workload(name="other", format="otel", sessions=sessions, source_sha256="x")
    assert one.sha256() == other.sha256()
    changed = Workload(name="one", format="native", sessions=(SessionPlan(session_id="s", turns=(turn("b"),)),))
    assert changed.sha256() != one.sha256()
