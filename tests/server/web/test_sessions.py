"""``/v1/sessions``: the sessions of gRPC, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from manager_bench import Bench

from sessile.server.engine.cache_messages import RetainOutcome, RetainPath
from sessile.server.web.application import create_app
from sessile.sessions.cache.retention import Verdict
from sessile.sessions.manager.events import TurnStarted

GREEDY = {"sampling": {"temperature": 0.0}}
HI = {"messages": [{"role": "user", "content": "hi"}], **GREEDY}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "data")
    bench.start()
    yield bench
    bench.stop()


@pytest.fixture
async def client(stage: Any, bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    stage.sessions = bench.manager
    transport = httpx.ASGITransport(create_app(stage.parts()), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://sessile/v1") as client:
        yield client


async def opened(client: httpx.AsyncClient, **body: Any) -> str:
    return (await client.post("/sessions", json=body)).json()["session_id"]


def events_of(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_a_conversation(client: httpx.AsyncClient, bench: Bench) -> None:
    session = (await client.post("/sessions", json={"system": "be good", "persistence": {"when": "on_suspend"}})).json()
    one = f"/sessions/{session['session_id']}"
    assert (session["version"], session["state"], session["persistence"]["when"]) == (1, "open", "on_suspend")
    turn = (await client.post(f"{one}/generate", json=HI)).json()
    assert (turn["turn"], turn["version"], turn["finish_reason"]) == (1, 2, "stop")
    assert turn["text"] == bench.tokenizer.decode(turn["token_ids"], skip_special=True)
    assert sum(turn["usage"]["tokens_by_source"].values()) == turn["usage"]["prompt_tokens"]
    result = {"tool_result": {"tool_call_id": "call_1", "content": "3 passed", "name": "run"}, **GREEDY}
    assert (await client.post(f"{one}/generate", json=result)).json()["turn"] == 2
    turns = (await client.get(f"{one}/turns")).json()["data"]
    assert [turn["turn"] for turn in turns] == [1, 2]
    assert turns[0]["usage"] == turn["usage"]
    appended = (await client.post(f"{one}/append", json={"text": "more"})).json()
    assert appended["tokens_committed"] == 4
    fork = (await client.post(f"{one}/fork", json={"at": {"turn": 1}})).json()
    assert (fork["parent_session_id"], fork["num_turns"]) == (session["session_id"], 1)
    back = (await client.post(f"{one}/rollback", json={"to": {"token": 7}, "expected_version": 4})).json()
    assert (back["num_tokens"], back["version"]) == (7, 5)
    assert (await client.get(one)).json() == back
    page = (await client.get("/sessions", params={"page_size": 1})).json()
    assert [view["session_id"] for view in page["data"]] == [session["session_id"]]
    rest = (await client.get("/sessions", params={"page_token": page["next_page_token"]})).json()
    assert ([view["session_id"] for view in rest["data"]], rest["next_page_token"]) == ([fork["session_id"]], "")
    assert (await client.post(f"{one}/close")).json()["state"] == "closed"
    gone = await client.get(one)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "session_not_found")


async def test_a_streamed_turn(client: httpx.AsyncClient) -> None:
    one = f"/sessions/{await opened(client)}"
    answer = await client.post(f"{one}/generate", json=HI | {"stream": True, "request_id": "r"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert {name for name, _ in events[:-1]} == {"delta"}
    assert all(event["type"] == name for name, event in events)
    assert events[-1][0] == "finished"
    again = (await client.post(f"{one}/generate", json=HI | {"request_id": "r"})).json()
    assert again["replayed"]
    assert again["text"] == "".join(event["text"] for _, event in events[:-1])
    assert again["token_ids"] == [token for _, event in events[:-1] for token in event["token_ids"]]


async def test_a_stream_that_fails_says_so(client: httpx.AsyncClient, bench: Bench) -> None:
    one = f"/sessions/{await opened(client)}"
    bench.engine.will_say([64, 65, 66], fail_after=2)
    name, event = events_of((await client.post(f"{one}/generate", json=HI | {"stream": True})).text)[-1]
    assert (name, event["error"]["code"]) == ("error", "engine_unavailable")
    bench.engine.will_say([64, 65, 66], fail_after=0)
    early = await client.post(f"{one}/generate", json=HI | {"stream": True})
    assert (early.status_code, early.json()["error"]["code"]) == (503, "engine_unavailable")
    bench.engine.will_say([64, 65, 66], fail_after=2)
    assert (await client.post(f"{one}/generate", json=HI)).status_code == 503


async def test_keeping(client: httpx.AsyncClient, bench: Bench) -> None:
    one = f"/sessions/{await opened(client)}"
    await client.post(f"{one}/generate", json=HI)
    hint = {"hint": {"type": "retain", "ttl_s": 60, "priority": 2}, "request_id": "h"}
    outcome = (await client.post(f"{one}/hint", json=hint)).json()
    assert (outcome["verdict"], outcome["expires_in_s"]) == ("accepted", 60.0)
    assert (await client.post(f"{one}/hint", json=hint)).json() == outcome
    suspended = (await client.post(f"{one}/suspend", json={"expected_version": 2})).json()
    assert suspended["session"]["suspended"]
    assert suspended["tokens_by_tier"]["disk"] == suspended["session"]["num_tokens"]
    resumed = (await client.post(f"{one}/resume")).json()
    assert (resumed["session"]["suspended"], resumed["tokens_to_compute"]) == (False, 0)
    assert bench.engine.asked


async def test_a_pin_for_which_a_tenant_has_no_room_says_when_to_come_back(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    one = f"/sessions/{await opened(client)}"
    await client.post(f"{one}/generate", json=HI)
    bench.engine.will_answer(
        RetainPath, RetainOutcome(verdict=Verdict.REJECTED, reason="9 blocks, of which 9 are used")
    )
    refused = await client.post(f"{one}/hint", json={"hint": {"type": "retain", "hard": True}})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert "9 blocks" in refused.json()["error"]["message"]


async def test_a_parameter_that_a_list_does_not_know_is_refused(client: httpx.AsyncClient) -> None:
    unknown = await client.get("/sessions?page_sise=2")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "page_sise")
    assert unknown.json()["error"]["details"]["remedy"] == "did you mean page_size?"
    assert (await client.get("/sessions?page_size=2&page_token=")).status_code == 200
    assert (await client.get(f"/sessions/{await opened(client)}?api-version=2")).status_code == 200


async def test_a_compressed_file_is_refused_as_one(client: httpx.AsyncClient) -> None:
    refused = await client.post("/sessions/import", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (415, "content-encoding")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("", {"sytem": "x"}, "sytem"),
        ("", {"persistence": {"when": "sometimes"}}, "persistence.when"),
        ("", {"persistence": {"when": "always", "idle_s": 4}}, "persistence.idle_s"),
        ("", {"tools": [{"type": "function"}]}, "tools[0]"),
        ("", {"model": "gpt-9"}, "model"),
        ("/{id}/generate", {"sampling": {"temperature": -1}}, "sampling.temperature"),
        ("/{id}/generate", {"sampling": {"temp": 1}}, "sampling.temp"),
        ("/{id}/generate", {"text": "x", "token_ids": [1]}, "token_ids"),
        ("/{id}/generate", {"messages": [{"role": "cat", "content": "x"}]}, "messages[0].role"),
        ("/{id}/generate", {"priority": "urgent"}, "priority"),
        ("/{id}/append", {}, "input"),
        ("/{id}/hint", {}, "hint"),
        ("/{id}/hint", {"hint": {"type": "pray"}}, "hint.type"),
        ("/{id}/hint", {"hint": {"type": "retain", "ttl": 3}}, "hint.ttl"),
        ("/{id}/hint", {"hint": {"type": "retain", "priority": 1000}}, "hint.priority"),
        ("/{id}/hint", {"hint": {"type": "retain", "ttl_s": -1}}, "hint.ttl_s"),
        ("/{id}/hint", {"hint": {"type": "tool_wait", "tool": "f", "p50_s": 3, "p95_s": 1}}, "hint.p95_s"),
        ("/{id}/generate", {"token_ids": [0, 10**6]}, "token_ids[1]"),
        ("/{id}/generate", {"messages": []}, "messages"),
        ("/{id}/generate", {"tool_result": {"tool_call_id": "", "content": "x"}}, "tool_result.tool_call_id"),
        ("/{id}/generate", {"text": "x", "sampling": {"max_tokens": 10**6}}, "sampling.max_tokens"),
        ("/{id}/generate", {"text": "x", "sampling": {"max_tokens": 10**6}, "stream": True}, "sampling.max_tokens"),
        ("/{id}/generate", {"text": "x", "sampling": {"logit_bias": {"x": 1}}}, "sampling.logit_bias"),
        ("/{id}/append", {"token_ids": [0, 10**6]}, "token_ids[1]"),
        ("/{id}/fork", {"at": {"turn": 1, "token": 1}}, "at"),
        ("/{id}/fork", {"at": {"turn": 9}}, "at.turn"),
        ("/{id}/rollback", {}, "to"),
        ("/{id}/suspend", {"expected_version": -1}, "expected_version"),
    ],
)
async def test_bad_input_names_its_field(client: httpx.AsyncClient, path: str, body: Any, field: str) -> None:
    session_id = await opened(client)
    answer = await client.post(f"/sessions{path.format(id=session_id)}", json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == field


async def test_versions_tenants_and_turns_in_progress(client: httpx.AsyncClient, bench: Bench) -> None:
    session_id = await opened(client)
    stale = await client.post(f"/sessions/{session_id}/generate", json=HI | {"expected_version": 9})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale_version")
    other = await client.get(f"/sessions/{session_id}", headers={"x-sessile-tenant": "b"})
    assert other.status_code == 404
    gate = asyncio.Event()
    bench.engine.will_say([64, 65], gate=gate)
    turn = asyncio.create_task(client.post(f"/sessions/{session_id}/generate", json=HI))
    while not bench.manager.running.is_busy(session_id):
        await asyncio.sleep(0)
    busy = await client.post(f"/sessions/{session_id}/suspend")
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "session_busy")
    gate.set()
    assert (await turn).status_code == 200


async def test_a_session_as_a_file(client: httpx.AsyncClient) -> None:
    session_id = await opened(client, system="be good")
    await client.post(f"/sessions/{session_id}/generate", json=HI)
    file = await client.get(f"/sessions/{session_id}/export")
    assert file.headers["content-disposition"] == f'attachment; filename="{session_id}.sessile"'
    assert len((await client.get(f"/sessions/{session_id}/export?without_kv=true")).content) < len(file.content)
    imported = (await client.post("/sessions/import?request_id=i", content=file.content)).json()
    assert imported["kv_tokens"] == imported["session"]["num_tokens"]
    assert (await client.post("/sessions/import?request_id=i", content=file.content)).json() == imported
    for content, field in ((file.content[:-1], "file"), (b"", "file"), (b"{}", "file")):
        broken = await client.post("/sessions/import", content=content)
        assert (broken.status_code, broken.json()["error"]["param"]) == (400, field)
    for unknown in ("ses_none", "%F0%B9%AE%89", "%22%0a"):  # none of which can be in a header as it is
        assert (await client.get(f"/sessions/{unknown}/export")).status_code in (400, 404)


async def test_a_watch(stage: Any, bench: Bench) -> None:
    """Through the application itself: the test client of httpx waits for an answer's end."""
    stage.sessions = bench.manager
    app = create_app(stage.parts())
    session = await bench.open()
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    leave = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not leave.is_set():
            await leave.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/v1/sessions/{session.session_id}/events",
        "headers": [],
        "query_string": b"",
    }
    serving = asyncio.create_task(app(scope, receive, sent.put))
    assert (await sent.get())["status"] == 200
    assert b"event: started" in (await sent.get())["body"]
    await bench.say(session.session_id, "hi")
    ((name, event),) = events_of((await sent.get())["body"].decode())
    assert (name, event["session_id"], event["what"]["prompt_tokens"] > 0) == (
        "turn_started",
        session.session_id,
        True,
    )
    ((name, event),) = events_of((await sent.get())["body"].decode())
    assert (name, event["what"]["turn"]) == ("finished", 1)
    leave.set()
    await serving
    bench.manager._watchers.publish("", session.session_id, TurnStarted(version=1, prompt_tokens=1))
    assert sent.empty()
    assert not bench.manager._watchers.any


async def test_the_document_describes_all_of_it(client: httpx.AsyncClient) -> None:
    document = (await client.get("http://sessile/openapi.json")).json()
    paths = {path: item for path, item in document["paths"].items() if path.startswith("/v1/sessions")}
    assert len(paths) == 15
    for path, operations in paths.items():
        for operation in operations.values():
            assert operation["description"], path
            assert "default" in operation["responses"]
            content = operation["responses"]["200"]["content"]
            for described in content.values():
                name = described["schema"].get("$ref", "").rsplit("/", 1)[-1]
                assert name in document["components"]["schemas"] or described["schema"]["format"] == "binary"
    references = set(json.dumps(document).split('"#/components/schemas/')[1:])
    names = {reference.split('"')[0] for reference in references}
    assert names <= set(document["components"]["schemas"])
