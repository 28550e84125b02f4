"""What an error says has its bound, whatever was sent."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from sessile.sessions.errors import MAX_MESSAGE_BYTES, SessileError


@given(st.text(min_size=490))
@example("m" * 10_000)
@example("🐘" * 1000)
def test_an_error_that_is_made_anew_elsewhere_says_the_same(text: str) -> None:
    """A client makes it from what the server sent; it must not be cut a second time."""
    message = SessileError(text).message
    assert len(message.encode(errors="replace")) <= MAX_MESSAGE_BYTES
    assert SessileError(message).message == message
