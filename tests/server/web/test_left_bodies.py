"""A body that is not read to its end is let go of at once, not when the garbage collector comes by."""

from __future__ import annotations

from typing import Any

import pytest
from left_generators import left_generators
from starlette.requests import Request

from sessile.server.web.batches_api.upload import uploaded
from sessile.server.web.decode import read_body
from sessile.server.web.errors import BodyTooLarge
from sessile.server.web.session_routes import import_pieces
from sessile.sessions.errors import RequestError

FORM = [(b"content-type", b"multipart/form-data; boundary=x")]


def request(*pieces: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> Request:
    """A request whose body comes in ``pieces`` and never ends."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    return Request({"type": "http", "headers": headers or []}, receive)


async def test_a_body_that_is_too_long() -> None:
    with left_generators() as left, pytest.raises(BodyTooLarge):
        await read_body(request(b"12345", b"67890"), 8)
    assert left == []


@pytest.mark.parametrize("pieces", [(b"no form at all", b"more"), (b"--x\r\n", b"y" * 100_000, b"more")])
async def test_a_form_that_cannot_be_read(pieces: tuple[bytes, ...]) -> None:
    with left_generators() as left, pytest.raises((RequestError, BodyTooLarge)):
        async with uploaded(request(*pieces, headers=FORM), 1_000):
            pass
    assert left == []


async def test_a_file_that_is_refused_at_its_beginning() -> None:
    with left_generators() as left:
        pieces = import_pieces(request(b"not one of ours", b"more"))
        async for piece in pieces:
            assert piece == b"not one of ours"
            break
        await pieces.aclose()
        del pieces
    assert left == []
