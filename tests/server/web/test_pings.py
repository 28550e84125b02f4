"""A stream with nothing to say pings, before its first event and between two; an error after a ping is an event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from web_bench import WebBench

from sessile.server.web.http_config import HttpConfig
from sessile.sessions.errors import CapacityError

COMMENT, EVENT = ": ping", 'event: ping\ndata: {"type":"ping"}'
SAID = [{"role": "user", "content": "hi"}]
CHAT = ("/v1/chat/completions", {"messages": SAID}, COMMENT, "data: [DONE]")
SEVERAL = ("/v1/chat/completions", {"messages": SAID, "n": 2}, COMMENT, "data: [DONE]")
TEXT = ("/v1/completions", {"prompt": "hi"}, COMMENT, "data: [DONE]")
RESPONSES = ("/v1/responses", {"input": "hi"}, COMMENT, "response.completed")
MESSAGES = ("/v1/messages", {"messages": SAID, "max_tokens": 9}, EVENT, "message_stop")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("pings")
    with WebBench(folder, http=HttpConfig(ping_s=0.02)) as web:
        yield web


@pytest.fixture
async def http(web: WebBench) -> AsyncIterator[httpx.AsyncClient]:
    async with web.served() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def frames(response: httpx.Response) -> AsyncIterator[str]:
    text = ""
    async for piece in response.aiter_text():
        text += piece
        while "\n\n" in text:
            frame, text = text.split("\n\n", 1)
            yield frame
    assert not text


@pytest.mark.parametrize("api", [CHAT, SEVERAL, TEXT, RESPONSES, MESSAGES], ids=lambda api: api[0])
async def test_a_quiet_stream_pings(web: WebBench, http: httpx.AsyncClient, api: Any) -> None:
    path, body, ping, end = api
    gates = [asyncio.Event() for _ in range(body.get("n", 1))]
    for gate in gates:
        web.bench.engine.will_say([64, 65, 66, 257], gate=gate)
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        pings = 0
        async for frame in frames(response):
            last = frame
            pings += frame == ping
            if pings == 4:  # one of Anthropic's comes with every stream
                for gate in gates:
                    gate.set()
    assert pings >= 4
    assert end in last


class _Held:
    """Holds turns back before their first token, and fails them if it is told to."""

    def __init__(self, web: WebBench) -> None:
        self._generate = web.bench.engine.generate
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def generate(self, turn: Any) -> Any:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        async with aclosing(self._generate(turn)) as outputs:
            async for output in outputs:
                yield output


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("api", [CHAT, SEVERAL, RESPONSES, MESSAGES], ids=lambda api: api[0])
async def test_a_turn_that_waits_pings(
    web: WebBench, http: httpx.AsyncClient, api: Any, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, ping, end = api
    held = _Held(web)
    held.error = CapacityError("full", retry_after_s=1.0) if fails else None
    monkeypatch.setattr(web.bench.engine, "generate", held.generate)
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        found = []
        async for frame in frames(response):
            found.append(frame)
            if found.count(ping) == 2:
                held.gate.set()
    assert found[:2] == [ping, ping]  # before the first event
    assert response.status_code == 200
    assert (end in found[-1]) or fails
    assert any("capacity" in frame or "rate_limit" in frame for frame in found) == fails


async def test_an_error_before_a_ping_has_its_status(web: WebBench, http: httpx.AsyncClient) -> None:
    for path, body, *_ in (CHAT, SEVERAL, RESPONSES, MESSAGES):
        for _ in range(2):
            web.bench.engine.will_say([64], fail_after=0, error=CapacityError("full", retry_after_s=1.0))
        response = await http.post(path, json={**body, "stream": True})
        assert response.status_code == 429, response.text
        web.bench.engine.scripts.clear()


async def test_a_watch_of_all_sessions_pings_and_tells(web: WebBench, http: httpx.AsyncClient) -> None:
    async with http.stream("GET", "/v1/sessions/events") as response:
        found: list[str] = []
        async for frame in frames(response):
            found.append(frame)
            if frame == COMMENT and found.count(COMMENT) == 2:
                one = (await http.post("/v1/sessions")).json()["session_id"]
                await http.post(f"/v1/sessions/{one}/generate", json={"text": "hi"})
                other = (await http.post("/v1/sessions", headers={"x-sessile-tenant": "b"})).json()["session_id"]
                await http.post(
                    f"/v1/sessions/{other}/generate", json={"text": "hi"}, headers={"x-sessile-tenant": "b"}
                )
            if "event: finished" in frame:
                break
    assert any(one in frame for frame in found)
    assert not any(other in frame for frame in found)
