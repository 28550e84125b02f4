"""Who computes what and who waits for it, against plain sets of keys."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import a_sequence

from sessile.server.engine.scheduler.in_flight import InFlightPrefixes
from sessile.server.engine.scheduler.urgency import Urgency


def keys(path: str) -> list[bytes]:
    """A key names the whole prefix up to its block's end."""
    return [path[: i + 1].encode() for i in range(len(path))]


def urgency(order: int) -> Urgency:
    return Urgency(0, float(order), order)


def test_a_turn_waits_for_the_deepest_block_that_it_shares() -> None:
    flights = InFlightPrefixes()
    leader, follower = a_sequence(0), a_sequence(1)
    flights.begin(leader, keys("abcdef"), 1)
    assert flights.find(keys("abcxyz"), 1) == (leader, 3)
    assert flights.find(keys("axyz"), 1) is None
    flights.follow(follower, urgency(1), leader, 3)
    assert flights.advance(leader, 2) == []
    assert flights.advance(leader, 4) == [follower]
    assert flights.find(keys("abcdef"), 4) == (leader, 6)


def test_followers_are_let_go_when_their_leader_ends() -> None:
    flights = InFlightPrefixes()
    leader, follower, gone = a_sequence(0), a_sequence(1), a_sequence(2)
    flights.begin(leader, keys("abc"), 0)
    flights.follow(follower, urgency(1), leader, 3)
    flights.follow(gone, urgency(2), leader, 3)
    flights.leave(gone)
    assert flights.end(leader) == [follower]
    assert flights.find(keys("abc"), 0) is None
    flights.check_integrity()


def test_a_leader_is_as_urgent_as_those_who_wait_for_it() -> None:
    flights = InFlightPrefixes()
    leader = a_sequence(9)
    own = Urgency(2, 100.0, 9)
    flights.begin(leader, keys("abcd"), 0)
    assert flights.urgency(leader, own) == own
    flights.follow(a_sequence(1), urgency(1), leader, 3)
    assert flights.urgency(leader, own) == urgency(1)
    flights.advance(leader, 3)
    assert flights.urgency(leader, own) == own


@settings(max_examples=100)
@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=6), st.integers(0, 3)), max_size=12))
def test_nobody_waits_for_what_nobody_computes(moves: list[tuple[str, int]]) -> None:
    """Turns come with random paths: they follow where they can, else they lead; leaders move on or end."""
    flights = InFlightPrefixes()
    leaders: dict = {}
    waiting: set = set()
    for order, (path, move) in enumerate(moves):
        sequence = a_sequence(order)
        done = max((n for p, n in leaders.values() for n in [_common(p[:n], path)]), default=0)
        found = flights.find(keys(path), done)
        in_flight = max((_common(p, path) for p, n in leaders.values() if n < len(p)), default=0)
        assert (found[1] if found else done) == max(done, in_flight)
        if found is not None:
            flights.follow(sequence, urgency(order), *found)
            waiting.add(sequence)
        else:
            flights.begin(sequence, keys(path), done)
            leaders[sequence] = (path, done)
        if leaders and move:
            leader = next(iter(leaders))
            path, done = leaders.pop(leader)
            if move == 3:
                waiting -= set(flights.end(leader))
            else:
                leaders[leader] = (path, min(len(path), done + move))
                waiting -= set(flights.advance(leader, min(len(path), done + move)))
        flights.check_integrity()
    for leader in leaders:
        waiting -= set(flights.end(leader))
    assert not waiting and flights.find(keys("ab"), 0) is None


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
