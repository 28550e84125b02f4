"""The breaker on a clock that is moved by hand."""

from __future__ import annotations

from set_clock import SetClock

from sessile.sessions.cache.breaker import CircuitBreaker


def test_it_opens_after_failures_in_a_row_only():
    breaker = CircuitBreaker(failures_to_open=3, clock=SetClock())
    for _ in range(5):
        breaker.failed("a")
        breaker.failed("b")
        assert breaker.allows() and not breaker.is_open and breaker.reason == ""
        breaker.succeeded()
    for _ in range(3):
        breaker.failed("the cable is out")
    assert breaker.is_open and not breaker.allows()
    assert breaker.reason == "the cable is out"


def test_one_attempt_a_pause_and_longer_pauses_after_failed_attempts():
    clock = SetClock()
    breaker = CircuitBreaker(failures_to_open=1, pause_s=1.0, longest_pause_s=4.0, clock=clock)
    breaker.failed("")
    for pause in (1.0, 2.0, 4.0, 4.0):
        clock.now += pause - 0.01
        assert not breaker.would_allow() and not breaker.allows()
        clock.now += 0.02
        assert breaker.would_allow()
        assert breaker.allows()
        assert not breaker.allows(), "the attempt is under way"
        breaker.failed("still")


def test_a_success_closes_it_and_forgets_the_longer_pauses():
    clock = SetClock()
    breaker = CircuitBreaker(failures_to_open=1, pause_s=1.0, clock=clock)
    breaker.failed("")
    clock.now += 1
    breaker.failed("")
    clock.now += 2
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows() and breaker.allows() and breaker.reason == ""
    breaker.failed("")
    clock.now += 1
    assert breaker.allows()
