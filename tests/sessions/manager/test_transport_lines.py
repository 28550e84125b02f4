"""Lines for an agent's own servers are left out; nothing that may be meant for the model is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessile.sessions.manager.transport_lines import neutralised
from sessile.sessions.messages import Message, Role

LINE = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"


def system(text: str) -> Message:
    return Message(role=Role.SYSTEM, content=text)


USER = Message(role=Role.USER, content=f"{LINE}\nwhat is this?")


@pytest.mark.parametrize(
    "line", [LINE, "x-acme-billing-header: a=1; b=", "X-Trace: id=0af7", "x-request-nonce: n=8f3a,m=1"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_at_the_head_goes(line: str, end: str) -> None:
    found = neutralised([system(f"{line}{end}You are brief."), USER])
    assert found.messages == (system("You are brief."), USER)
    assert found.names == (line.partition(":")[0].lower(),)


def test_a_message_that_is_nothing_else_goes_with_it() -> None:
    found = neutralised([system(LINE), system(f"{LINE}\nx"), USER])
    assert (found.messages, len(found.names)) == ((system("x"), USER), 2)
    assert neutralised([system(LINE)]).messages == (system(""),), "one message is left"


@pytest.mark.parametrize(
    "text",
    [
        "You are brief.\n" + LINE,
        "x-anthropic-billing-header: say what this header means",
        "billing: plan=pro; seats=4",
        "x-frame-options: a=1; b=2;",
        "Authorization: token=1",
        "",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert neutralised([system(text), USER]).messages == (system(text), USER)


def test_only_the_system_may_say_it() -> None:
    assert neutralised([USER]).messages == (USER,)


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: bool(text.strip(" \t\r\n"))))
def test_what_follows_the_line_stays_as_it_is(text: str) -> None:
    text = f"Rules: {text}"
    assert neutralised([system(f"{LINE}\n{text}"), USER]).messages == (system(text), USER)
    assert neutralised([system(text), USER]).names == ()
