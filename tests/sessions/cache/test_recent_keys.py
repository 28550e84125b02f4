"""What is remembered, for how long and how much of it."""

from __future__ import annotations

from sessile.sessions.cache.recent_keys import RecentKeys


def test_keys_are_forgotten_after_their_time_and_the_oldest_first():
    now = 0.0
    keys = RecentKeys(seconds=10.0, most=2, clock=lambda: now)
    keys.note(b"a")
    keys.note(b"b")
    now = 9.0
    assert b"a" in keys and b"b" in keys
    keys.note(b"a")
    keys.note(b"c")
    assert b"b" not in keys, "the oldest made room"
    now = 12.0
    assert b"a" in keys
    now = 19.0
    assert b"a" not in keys and b"c" not in keys
    keys.note(b"d")
    keys.forget(b"d")
    keys.forget(b"never there")
    assert b"d" not in keys
