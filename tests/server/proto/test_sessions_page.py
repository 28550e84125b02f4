"""docs/sessions.md names every call once, in all three ways, and shows the example as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sessile.server.client import AsyncSession, AsyncSessionClient, Session, SessionClient
from sessile.server.proto import session_pb2 as pb
from sessile.sessions.keeping import Persistence

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "sessions.md").read_text()
METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["SessionService"].methods]


@pytest.mark.parametrize("method", METHODS)
def test_every_call_has_its_line(method: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{method}` |")]
    _, _, python, http, _ = line.split("|")
    assert "/v1/sessions" in http
    for owner, name in re.findall(r"`(client|session)\.(\w+)\(", python):
        for kind in (AsyncSessionClient, SessionClient) if owner == "client" else (AsyncSession, Session):
            assert hasattr(kind, name) or name == "export", (kind, name)  # chunks are for asyncio alone


def test_the_example_is_the_one_that_runs() -> None:
    assert (ROOT / "examples" / "tool_loop.py").read_text().strip() in PAGE


def test_hints_and_policies_have_their_lines() -> None:
    for name in ("tool_wait", "retain", "will_branch", "expected_output", "final"):
        kind = pb.DESCRIPTOR.message_types_by_name["Hint"].fields_by_name[name].message_type.name
        assert re.search(rf"^\| `{kind}[`{{]", PAGE, re.MULTILINE), kind
    for policy in Persistence:
        assert f"| `{policy.value}` |" in PAGE
