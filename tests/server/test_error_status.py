"""Errors keep what they know on their way through a status and back."""

from __future__ import annotations

import inspect

import pytest

from sessile.server.error_status import ERROR_TABLE, error_from_wire, error_metadata, retry_after_s, status_of
from sessile.server.proto.errors import from_details, to_status
from sessile.sessions import errors
from sessile.sessions.errors import (
    ContextOverflow,
    EngineError,
    ModelChanged,
    RequestError,
    SessileError,
    StaleVersion,
)

EXAMPLES: dict[type[SessileError], SessileError] = {
    ContextOverflow: ContextOverflow("too long", limit=8192, field="input", remedy="send less"),
    StaleVersion: StaleVersion("stale", expected=1, actual=2),
    ModelChanged: ModelChanged("changed", session_fingerprint="a", server_fingerprint="b"),
}
ALL = [error for _, error in inspect.getmembers(errors, inspect.isclass) if issubclass(error, SessileError)]


def example(error_class: type[SessileError]) -> SessileError:
    return EXAMPLES.get(error_class) or error_class("it failed", field="a.b[1]", remedy="do this", retry_after_s=1.5)


def test_every_error_has_a_row_of_its_own() -> None:
    assert {row.error for row in ERROR_TABLE} == set(ALL)
    assert len({row.reason for row in ERROR_TABLE}) == len(ERROR_TABLE)


@pytest.mark.parametrize("error_class", ALL)
def test_there_and_back(error_class: type[SessileError]) -> None:
    sent = example(error_class)
    received = from_details(to_status(sent).SerializeToString())
    assert type(received) is error_class
    assert {**vars(received), "retry_after_s": None} == {**vars(sent), "retry_after_s": None}
    assert received.retry_after_s == retry_after_s(sent)
    assert str(received) == str(sent)


def test_a_subclass_has_its_parents_row() -> None:
    class Special(RequestError):
        pass

    assert status_of(Special("x")).reason == "INVALID_REQUEST"


def test_transient_errors_say_when() -> None:
    assert retry_after_s(EngineError("x")) == 1.0
    assert retry_after_s(EngineError("x", retry_after_s=7.0)) == 7.0
    assert retry_after_s(RequestError("x")) is None


def test_what_a_newer_server_says() -> None:
    assert error_from_wire("SOMETHING_NEW", "x", {}) is None
    stale = error_from_wire("STALE_VERSION", "x", {"expected": "one"})
    assert isinstance(stale, StaleVersion)
    assert stale.expected == 0
    assert error_metadata(SessileError("x")) == {}
