"""docs/api.md has every endpoint and every RPC with one call, and each call does what it says."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from starlette.routing import compile_path
from web_bench import WebBench

from sessile.server.proto import session_pb2 as pb
from sessile.server.web.dashboard_routes import dashboard_routes

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
LINES = [line.removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("$ ")]
SERVICE = pb.DESCRIPTOR.services_by_name["SessionService"]
REQUEST = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}'


@dataclass(frozen=True)
class Call:
    """A line of curl."""

    method: str
    path: str
    body: str | None
    endless: bool

    @classmethod
    def read(cls, line: str) -> Call:
        words = shlex.split(line)[1:]
        (address,) = [word for word in words if word.startswith("localhost:8000/")]
        body = next((words[at + 1] for at, word in enumerate(words) if word in ("-d", "--data-binary")), None)
        posts = body is not None or "-F" in words
        method = words[words.index("-X") + 1] if "-X" in words else "POST" if posts else "GET"
        return cls(method, address.removeprefix("localhost:8000"), body, "-N" in words)


CALLS = [Call.read(line) for line in LINES if line.startswith("curl ")]


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebBench]:
    with WebBench(tmp_path) as web:
        yield web


def endpoint_of(call: Call, endpoints: list[tuple[str, str]]) -> tuple[str, str]:
    """The first endpoint, in the order of the routes, that the call reaches."""
    for method, path in endpoints:
        if method == call.method and compile_path(path)[0].match(call.path.split("?")[0]):
            return method, path
    raise AssertionError(f"{call} reaches nothing")


async def test_every_endpoint_stands_once(web: WebBench) -> None:
    paths = web.app.openapi()["paths"]
    endpoints = [(method.upper(), path) for path, operations in paths.items() for method in operations]
    endpoints += [(method, route.path) for route in dashboard_routes(web.parts).routes for method in route.methods]  # type: ignore[attr-defined]
    reached = [endpoint_of(call, endpoints) for call in CALLS]
    assert sorted(reached) == sorted(endpoints)


async def test_every_call_is_answered(web: WebBench) -> None:
    async with web.client() as http:
        for call in CALLS:
            if call.endless:
                continue
            path, body = await filled(http, call.path), await filled(http, call.body or "")
            fields: dict[str, Any] = {"content": body.encode()} if call.body else {}
            if call.path == "/v1/files" and call.method == "POST":
                fields = {"data": {"purpose": "batch"}, "files": {"file": REQUEST}}
            if body == "@session.sessile":
                export = await filled(http, "/v1/sessions/ses_…/export")
                fields = {"content": (await http.get(export)).content}
            response = await http.request(call.method, path, **fields)
            shown = 404 if call.path.startswith("/dashboard/session") else 200  # the scripted engine is not observed
            assert response.status_code == shown, (call, response.text)


async def filled(http: httpx.AsyncClient, text: str) -> str:
    """Ids of something new in the place of those that the page leaves out."""
    for gap, make in (("ses_…", _session), ("resp_…", _response), ("file-…", _file), ("batch_…", _batch)):
        if gap in text:
            text = text.replace(gap, await make(http))
    return text


async def _session(http: httpx.AsyncClient) -> str:
    one: str = (await http.post("/v1/sessions")).json()["session_id"]
    await http.post(f"/v1/sessions/{one}/generate", json={"text": "hi"})
    return one


async def _response(http: httpx.AsyncClient) -> str:
    return str((await http.post("/v1/responses", json={"input": "Of France?"})).json()["id"])


async def _file(http: httpx.AsyncClient) -> str:
    return str((await http.post("/v1/files", data={"purpose": "batch"}, files={"file": REQUEST})).json()["id"])


async def _batch(http: httpx.AsyncClient) -> str:
    body = {"input_file_id": await _file(http), "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str((await http.post("/v1/batches", json=body)).json()["id"])


def test_every_rpc_stands_once_with_a_request_that_it_reads() -> None:
    called = []
    for line in LINES:
        if line.startswith("grpcurl "):
            words = shlex.split(line)
            service, name = words[-1].split("/")
            assert service == SERVICE.full_name
            request = getattr(pb, SERVICE.methods_by_name[name].input_type.name)()
            json_format.Parse(words[words.index("-d") + 1], request)
            called.append(name)
    assert sorted(called) == sorted(method.name for method in SERVICE.methods)
