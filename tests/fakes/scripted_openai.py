"""A server of OpenAI's protocol whose answers and times are a script, and that counts for itself what it did."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Served:
    """One request: its body, its headers, when it was read and when each piece was sent."""

    body: dict[str, Any]
    headers: dict[str, str]
    received: float
    sent: list[float] = field(default_factory=list)


@dataclass
class Script:
    """Times in seconds. ``status``: by the number of the request; after ``dies_after`` pieces the connection breaks."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    words: Callable[[dict[str, Any]], list[str]] | None = None
    status: Callable[[int], int] = lambda number: 200
    dies_after: int | None = None
    owned_by: str = "scripted"


class ScriptedServer:
    """Use as an async context manager; ``url`` then answers."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.served: list[Served] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> ScriptedServer:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._text)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted-model", "owned_by": self.script.owned_by}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "7"})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, lambda word: {"delta": {"content": word}})

    async def _text(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, lambda word: {"text": word})

    async def _answer(self, request: web.Request, choice: Callable[[str], dict[str, Any]]) -> web.StreamResponse:
        served = Served(await request.json(), dict(request.headers), time.perf_counter())
        status = self.script.status(len(self.served))
        self.served.append(served)
        if status != 200:
            return web.json_response({"error": {"message": "as scripted"}}, status=status, headers={"retry-after": "0"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        words = self.script.words(served.body) if self.script.words else ["word "] * served.body["max_tokens"]
        due = served.received + self.script.ttft_s
        for number, word in enumerate(words):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if number == self.script.dies_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            served.sent.append(time.perf_counter())
            await response.write(b"data: " + json.dumps({"choices": [choice(word)]}).encode() + b"\n\n")
            due += self.script.tpot_s
        await response.write(b"data: " + json.dumps(self._end(served, len(words))).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    def _end(self, served: Served, tokens: int) -> dict[str, Any]:
        prompt = len(json.dumps(served.body.get("messages", served.body.get("prompt", "")))) // 4
        cached = prompt // 2
        return {
            "choices": [],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }
