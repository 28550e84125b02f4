"""docs/grpc.md names every call and every reason of an error, with its statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessile.server.error_status import ERROR_TABLE, ErrorStatus
from sessile.server.proto import session_pb2 as pb

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "grpc.md").read_text()


@pytest.mark.parametrize("method", [method.name for method in pb.DESCRIPTOR.services_by_name["SessionService"].methods])
def test_every_call_is_described(method: str) -> None:
    assert any(line.startswith("| `") and f"`{method}`" in line for line in PAGE.splitlines())


@pytest.mark.parametrize("row", ERROR_TABLE, ids=lambda row: row.reason)
def test_every_reason_is_described(row: ErrorStatus) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith("| `") and f"`{row.reason}`" in line.split("|")[1]]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[2:4] == [f"`{row.grpc_code.name}`", str(row.http_status)]
