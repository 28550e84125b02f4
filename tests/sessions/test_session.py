"""The rules of sessions and their logs."""

from __future__ import annotations

import pytest

from sessile.sessions.errors import ModelChanged, RequestError, StaleVersion
from sessile.sessions.session import (
    EMPTY_LOG,
    START,
    AtToken,
    AtTurn,
    Entry,
    EntryKind,
    Head,
    LogPart,
    ModelIdentity,
    NewEntry,
    Place,
    Session,
    SessionLog,
    SessionState,
)

MODEL = ModelIdentity(name="m", model_fingerprint="f1", tokenizer_fingerprint="t1")


def entry(entry_id: int, parent: Head | None, kind: EntryKind, start: int, turn: int, length: int) -> Entry:
    tokens = tuple(range(start, start + length))
    return Entry(entry_id=entry_id, parent=parent, kind=kind, start=start, turn=turn, token_ids=tokens, messages=())


INPUT = entry(1, None, EntryKind.PROMPT, 0, 0, 10)
ANSWER = entry(2, Head(1, 10), EntryKind.OUTPUT, 10, 1, 5)
APPENDED = entry(3, Head(2, 5), EntryKind.INPUT, 15, 1, 4)
SECOND = entry(4, Head(3, 4), EntryKind.OUTPUT, 19, 2, 6)
LOG = SessionLog((LogPart(INPUT, 10), LogPart(ANSWER, 5), LogPart(APPENDED, 4), LogPart(SECOND, 6)))


def session(place: Place = START) -> Session:
    return Session(
        session_id="s",
        tenant="t",
        version=3,
        state=SessionState.OPEN,
        place=place,
        model=MODEL,
        system=None,
        tools=(),
        parent_session_id=None,
        created_at=1.0,
        updated_at=1.0,
    )


def test_a_log_is_its_parts_tokens() -> None:
    assert LOG.token_ids() == list(range(25))
    assert LOG.place == Place(Head(4, 6), 25, 2)
    assert (EMPTY_LOG.place, EMPTY_LOG.num_tokens) == (START, 0)


@pytest.mark.parametrize(
    ("point", "place"),
    [
        (AtTurn(0), START),
        (AtTurn(1), Place(Head(2, 5), 15, 1)),
        (AtTurn(2), Place(Head(4, 6), 25, 2)),
        (AtToken(0), START),
        (AtToken(1), Place(Head(1, 1), 1, 0)),
        (AtToken(10), Place(Head(1, 10), 10, 0)),
        (AtToken(14), Place(Head(2, 4), 14, 0)),  # an answer cut short is not a finished turn
        (AtToken(15), Place(Head(2, 5), 15, 1)),
        (AtToken(17), Place(Head(3, 2), 17, 1)),
        (AtToken(24), Place(Head(4, 5), 24, 1)),
        (AtToken(25), Place(Head(4, 6), 25, 2)),
    ],
)
def test_points(point: AtTurn | AtToken, place: Place) -> None:
    assert LOG.find(point, "at") == place


@pytest.mark.parametrize("point", [AtTurn(-1), AtTurn(3), AtToken(-1), AtToken(26), AtTurn(10**18)])
def test_points_outside_of_the_log(point: AtTurn | AtToken) -> None:
    with pytest.raises(RequestError) as error:
        LOG.find(point, "to")
    assert error.value.field in ("to.turn", "to.token")


def test_a_turn_counts_anew_behind_an_answer_that_was_cut() -> None:
    cut = LogPart(ANSWER, 3)
    redone = LogPart(entry(5, Head(2, 3), EntryKind.OUTPUT, 13, 1, 2), 2)
    log = SessionLog((LogPart(INPUT, 10), cut, redone))
    assert log.token_ids() == [*range(13), 13, 14]
    assert log.find(AtTurn(1), "at") == Place(Head(5, 2), 15, 1)


def test_each_change_is_the_next_version() -> None:
    before = session(LOG.place)
    new = (
        NewEntry(kind=EntryKind.PROMPT, token_ids=(1, 2)),
        NewEntry(kind=EntryKind.OUTPUT, token_ids=(3,)),
    )
    after = before.advanced(new, now=2.0)
    assert (after.version, after.place, after.updated_at) == (4, Place(Head(4, 6), 28, 3), 2.0)
    assert before.moved(START, now=2.0).place == START
    assert before.closed(now=2.0).state is SessionState.CLOSED
    fork = before.forked("f", LOG.find(AtTurn(1), "at"), now=5.0)
    assert (fork.session_id, fork.version, fork.parent_session_id, fork.created_at) == ("f", 1, "s", 5.0)
    assert fork.place.num_tokens == 15


def test_a_stale_version_names_both() -> None:
    session().require_version(None)
    session().require_version(3)
    with pytest.raises(StaleVersion) as stale:
        session().require_version(2)
    assert (stale.value.expected, stale.value.actual) == (2, 3)


@pytest.mark.parametrize("other", [("f2", "t1"), ("f1", "t2")])
def test_tokens_of_another_model_or_tokenizer_are_refused(other: tuple[str, str]) -> None:
    MODEL.require_same(ModelIdentity(name="renamed", model_fingerprint="f1", tokenizer_fingerprint="t1"))
    with pytest.raises(ModelChanged) as changed:
        MODEL.require_same(ModelIdentity(name="n", model_fingerprint=other[0], tokenizer_fingerprint=other[1]))
    assert changed.value.session_fingerprint != changed.value.server_fingerprint
