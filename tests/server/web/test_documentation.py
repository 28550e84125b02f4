"""docs/http.md names every field of a body in its kind, every endpoint, and every code of an error."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from sessile.server.error_status import ERROR_TABLE
from sessile.server.web import bodies

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "http.md").read_text()


def row(start: str) -> set[str]:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return set(re.findall(r"`([\w.]+)`", line))


@pytest.mark.parametrize("body", [bodies.ChatBody, bodies.CompletionBody])
def test_every_field_stands_in_its_row(body: type[msgspec.Struct]) -> None:
    effectless, limited = set(bodies._annotated(body, "effect")), set(bodies._annotated(body, "only"))
    effective = {field.name for field in msgspec.structs.fields(body)} - effectless - limited
    assert effective <= row("have their effect")
    assert limited <= row("accepted at their neutral value")
    assert effectless <= row("have no effect here")


async def test_every_endpoint_is_listed(client) -> None:
    for path in (await client.get("/openapi.json")).json()["paths"]:
        assert path in PAGE


def test_the_codes_of_errors_that_turns_have() -> None:
    raised = {"INVALID_REQUEST", "CONTEXT_OVERFLOW", "CAPACITY", "DRAINING", "ENGINE_UNAVAILABLE"}
    for status in ERROR_TABLE:
        if status.reason in raised:
            (line,) = (
                line for line in PAGE.splitlines() if line.startswith("|") and f"`{status.reason.lower()}`" in line
            )
            assert line.startswith(f"| {status.http_status} |")
