"""API keys over HTTP: nothing is served without one, where there are keys."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from sessile.server.identity.api_key import Scope, new_key
from sessile.server.identity.gate import Gate
from sessile.server.identity.key_file import KeyFile
from sessile.server.web.application import create_app

CHAT = "/v1/chat/completions"


@pytest.fixture
def keys(stage, tmp_path: Path) -> dict[Scope, str]:
    """A key a scope, of tenant acme; the stage then asks for one."""
    file, texts = KeyFile(tmp_path), {}
    for scope in Scope:
        texts[scope], key = new_key("acme", (scope,), "", 0.0)
        file.change(lambda present, key=key: [*present, key])
    stage.gate = Gate(file, None, lambda: 0.0)
    return texts


@pytest.fixture
async def locked(stage, keys):
    transport = httpx.ASGITransport(create_app(stage.parts()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_every_route_but_the_probes_asks_for_a_key(locked) -> None:
    document = (await locked.get("/openapi.json")).json()
    asked = 0
    for path, methods in document["paths"].items():
        if path in ("/health", "/ready"):
            continue
        for method in methods:
            answer = await locked.request(method, path.replace("{", "").replace("}", ""))
            assert answer.status_code == 401, (method, path, answer.text)
            asked += 1
    assert asked >= 6
    assert (await locked.get("/health")).status_code == (await locked.get("/ready")).status_code == 200


async def test_a_refusal_says_what_to_do_and_no_turn_is_run(locked, stage, chat_body) -> None:
    refused = await locked.post(CHAT, json=chat_body, headers={"authorization": "Bearer sk-wrong"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (401, "unauthenticated")
    assert "Bearer" in error["message"] and "sk-wrong" not in refused.text
    assert not stage.turns.requests


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_the_key_is_the_tenant(locked, stage, keys, chat_body, header: str) -> None:
    text = keys[Scope.INFER]
    headers = {header: f"Bearer {text}" if header == "authorization" else text}
    assert (await locked.post(CHAT, json=chat_body, headers=headers)).status_code == 200
    assert stage.turns.requests[-1].tenant == "acme"
    other = await locked.post(CHAT, json=chat_body, headers=headers | {"x-sessile-tenant": "other"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "permission_denied")
    assert len(stage.turns.requests) == 1
    admin = {"x-api-key": keys[Scope.ADMIN], "x-sessile-tenant": "other"}
    assert (await locked.post(CHAT, json=chat_body, headers=admin)).status_code == 200
    assert stage.turns.requests[-1].tenant == "other"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/metrics", {Scope.METRICS, Scope.ADMIN}),
        ("/v1/cache/hit-rate", {Scope.METRICS, Scope.ADMIN}),
        ("/v1/models", {Scope.INFER, Scope.ADMIN}),
    ],
)
async def test_scopes_of_paths(locked, keys, path: str, allowed: set[Scope]) -> None:
    for scope, text in keys.items():
        answer = await locked.get(path, headers={"x-api-key": text})
        assert answer.status_code == (200 if scope in allowed else 403), scope


async def test_no_other_origin_is_let_in(client, chat_body) -> None:
    """CORS is closed: a page of another origin gets no permission to read, nor for a preflight."""
    headers = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    preflight = await client.options(CHAT, headers=headers)
    assert preflight.status_code == 405
    answer = await client.post(CHAT, json=chat_body, headers={"origin": "https://elsewhere.example"})
    for response in (preflight, answer):
        assert not [name for name in response.headers if name.startswith("access-control-")]
