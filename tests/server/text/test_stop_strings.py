"""Stop strings: found wherever they are cut, and nothing that belongs to one is emitted."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessile.server.text.stop_strings import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, StopStrings
from sessile.sessions.errors import RequestError

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

SHORT = st.text("abc", min_size=1, max_size=4)


def cut_by_hand(text: str, stop: list[str]) -> tuple[str, bool]:
    """Up to the stop string that ends first; the longest where several end together."""
    for end in range(1, len(text) + 1):
        matches = [word for word in stop if text[:end].endswith(word)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False


@RELAXED
@given(pieces=st.lists(st.text("abc", max_size=4), max_size=12), stop=st.lists(SHORT, max_size=5))
def test_equals_the_search_by_hand(pieces: list[str], stop: list[str]) -> None:
    stopper = StopStrings(stop)
    emitted, stopped = "", False
    for piece in pieces:
        safe, stopped = stopper.push(piece)
        emitted += safe
        if stopped:
            break
    emitted += "" if stopped else stopper.flush()
    assert (emitted, stopped) == cut_by_hand("".join(pieces), stop)


@RELAXED
@given(text=st.text("ab", max_size=20), stop=st.lists(st.text("ab", min_size=2, max_size=5), min_size=1, max_size=3))
def test_what_is_held_back_is_the_longest_possible_beginning(text: str, stop: list[str]) -> None:
    stopper = StopStrings(stop)
    emitted, stopped = stopper.push(text)
    if stopped:
        return
    held = text[len(emitted) :]
    beginnings = {word[:length] for word in stop for length in range(1, len(word))}
    longest = max((length for length in range(len(text) + 1) if text[len(text) - length :] in beginnings), default=0)
    assert len(held) == longest


def test_after_the_end_nothing_comes() -> None:
    stopper = StopStrings(["END"])
    assert stopper.push("ab E") == ("ab ", False)
    assert stopper.push("ND more") == ("", True)
    assert stopper.push("END") == ("", True)
    assert stopper.flush() == ""


def test_without_stop_strings_all_passes() -> None:
    assert StopStrings([]).push("text") == ("text", False)


@pytest.mark.parametrize(
    ("stop", "field"),
    [
        (["x"] * (MAX_STOP_STRINGS + 1), "stop"),
        ([f"s{i}" for i in range(2000)], "stop"),
        (["a", ""], "stop[1]"),
        (["a" * (MAX_STOP_CHARACTERS + 1)], "stop[0]"),
    ],
)
def test_limits_are_named(stop: list[str], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        StopStrings(stop)
    assert caught.value.field == field
    assert caught.value.remedy
