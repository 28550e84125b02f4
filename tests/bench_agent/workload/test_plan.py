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
    over_before,
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
        ((turn("a"), turn("b", continues=-1, after=(0,))), "need not be over"),
        ((), "no turns"),
        ((Turn(prompt=MessagesPrompt(())),), "an empty prompt"),
        ((Turn(prompt=TextPrompt("")),), "an empty prompt"),
        ((turn("a", gap_s=float("nan")),), "gap_s has to be"),
        ((turn("a", output_tokens=0),), "output_tokens has to be"),
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


def test_what_is_over_before_a_turn_in_a_long_session() -> None:
    """A bit for each pair of turns, not an object: thousands of turns are a few megabytes."""
    turns = [turn("0")] + [turn(str(i), continues=i - 1, after=(i - 1,)) for i in range(1, 5000)]
    session = SessionPlan(session_id="s", turns=tuple(turns))
    check_session(session)
    assert [over.bit_count() for over in over_before(session)] == list(range(5000))
