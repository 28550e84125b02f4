"""``/v1/files`` and ``/v1/batches`` with OpenAI's own client, over a session manager and a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from asked_batches import CHAT, asking, batch_metrics, begun, ended, lines_of
from starlette.requests import Request
from web_bench import WebBench

from sessile.server.engine.messages import Priority
from sessile.server.web.batches_api.upload import uploaded
from sessile.server.web.errors import BodyTooLarge
from sessile.sessions.batches import worker
from sessile.sessions.batches.config import BatchesConfig
from sessile.sessions.errors import CapacityError, EngineError

LIMITS = BatchesConfig(concurrency=3, max_lines=20, max_unfinished=2, max_file_bytes=30_000, max_files=9)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebBench]:
    with WebBench(tmp_path / "data", batches_config=LIMITS) as web:
        await web.start_batches()
        yield web
        await web.batches.aclose()


@pytest.fixture
async def sdk(http: httpx.AsyncClient) -> openai.AsyncOpenAI:
    """OpenAI's own client."""
    return openai.AsyncOpenAI(api_key="any", base_url="http://sessile/v1", http_client=http, max_retries=0)


@pytest.mark.parametrize("url", [CHAT, "/v1/completions", "/v1/responses"])
async def test_a_batch_answers_each_line(web: WebBench, sdk: openai.AsyncOpenAI, url: str) -> None:
    batch = await begun(sdk, asking(*"abcdefg", url=url), url, metadata={"run": "1"})
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"run": "1"})
    batch = await ended(sdk, batch.id)
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
    assert batch.request_counts.model_dump() == {"total": 7, "completed": 7, "failed": 0}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    lines = await lines_of(sdk, batch.output_file_id)
    assert sorted(line["custom_id"] for line in lines) == [f"line-{n}" for n in range(7)]
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert {turn.priority for turn in web.bench.engine.submitted} == {Priority.BATCH}
    bodies = [line["response"]["body"] for line in lines]
    assert [line["response"]["request_id"] for line in lines] == [body["id"] for body in bodies]
    key = "input_tokens" if url == "/v1/responses" else "prompt_tokens"
    assert batch.usage.input_tokens == sum(body["usage"][key] for body in bodies)
    assert batch.usage.total_tokens == sum(body["usage"]["total_tokens"] for body in bodies)
    assert batch.usage.input_tokens == sum(len(turn.token_ids) for turn in web.bench.engine.submitted)
    kept = len(await web.bench.store.sessions("", limit=10))
    assert kept == (7 if url == "/v1/responses" else 0)  # a response may be continued; nobody goes on with a chat


async def test_results_come_in_the_order_of_their_ends(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    gate = asyncio.Event()
    web.bench.engine.will_say([64, 65, 257], gate=gate)  # the first line, in the middle of its answer
    batch = await begun(sdk, asking(*"abcd"))
    while (await sdk.batches.retrieve(batch.id)).request_counts.completed < 3:
        await asyncio.sleep(0.005)
    counts = (await sdk.batches.retrieve(batch.id)).request_counts
    assert counts.model_dump() == {"total": 4, "completed": 3, "failed": 0}  # live, while the first one runs
    gate.set()
    batch = await ended(sdk, batch.id)
    names = [line["custom_id"] for line in await lines_of(sdk, batch.output_file_id)]
    assert (sorted(names[:3]), names[3]) == (["line-1", "line-2", "line-3"], "line-0")


async def test_a_line_is_read_as_a_live_request_is(web: WebBench, http: httpx.AsyncClient, sdk: Any) -> None:
    """The error of a line is the answer that the live endpoint gives to its body, word for word."""
    bodies: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": [{"role": "user", "content": "x"}], "temperature": -1},
        {"messages": [{"role": "user", "content": "x"}], "temprature": 1},
        {"messages": [{"role": "user", "content": "x"}], "model": "gpt"},
        {"messages": [{"role": "user", "content": "x" * 9000}]},
    ]
    lines = [
        json.dumps({"custom_id": str(n), "method": "POST", "url": CHAT, "body": body}) for n, body in enumerate(bodies)
    ]
    batch = await ended(sdk, (await begun(sdk, "\n".join(lines).encode())).id)
    assert (batch.status, batch.output_file_id, batch.request_counts.failed) == ("completed", None, 5)
    for line in await lines_of(sdk, batch.error_file_id):
        live = await http.post(CHAT, json=bodies[int(line["custom_id"])])
        assert line["response"]["status_code"] == live.status_code >= 400
        assert line["response"]["body"] == live.json()
    assert batch.usage.total_tokens == 0


async def test_a_stream_is_no_line_and_several_answers_are(sdk: openai.AsyncOpenAI) -> None:
    content = asking("a", n=3) + b"\n" + asking("a", stream=True).replace(b"line-0", b"line-1")
    batch = await ended(sdk, (await begun(sdk, content)).id)
    (good,) = await lines_of(sdk, batch.output_file_id)
    (bad,) = await lines_of(sdk, batch.error_file_id)
    assert [choice["index"] for choice in good["response"]["body"]["choices"]] == [0, 1, 2]
    assert bad["response"]["body"]["error"]["param"] == "stream"


async def test_bad_lines_are_told_with_their_numbers(sdk: openai.AsyncOpenAI) -> None:
    lines = asking("a", "b", "c").split(b"\n")
    content = b"\n".join([lines[0], lines[0], b"{broken", lines[1].replace(b"chat/", b""), lines[2]])
    batch = await ended(sdk, (await begun(sdk, content)).id)
    assert (batch.status, batch.output_file_id, batch.request_counts.total) == ("failed", None, 0)
    assert batch.errors.data is not None
    found = [(problem.line, problem.code, problem.param) for problem in batch.errors.data]
    assert found == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_json_line", None),
        (4, "mismatched_url", "url"),
    ]
    batch = await ended(sdk, (await begun(sdk, asking(*"x" * 21))).id)
    assert [(problem.line, problem.code) for problem in batch.errors.data] == [(21, "too_many_lines")]


async def test_a_page_behind_nothing_names_its_parameter(http: httpx.AsyncClient) -> None:
    for path in ("/v1/files", "/v1/batches"):
        answer = await http.get(path, params={"after": "x"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "after")


async def test_what_is_not_a_lines_fault_is_tried_again(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    for error in (CapacityError("full", retry_after_s=0.01), EngineError("it died", retry_after_s=0.01)):
        web.bench.engine.will_say([64, 257], fail_after=0, error=error)
    web.bench.engine.will_say([64, 65, 66, 257], fail_after=2, error=EngineError("in the middle", retry_after_s=0.01))
    batch = await ended(sdk, (await begun(sdk, asking(*"abcde"))).id)
    assert batch.request_counts.model_dump() == {"total": 5, "completed": 5, "failed": 0}
    lines = await lines_of(sdk, batch.output_file_id)
    told = [line["response"]["body"]["usage"]["prompt_tokens"] for line in lines]
    assert batch.usage.input_tokens == sum(told)  # each line once, though three ran twice
    assert len(web.bench.engine.submitted) == 8


async def test_metrics_tell_how_far_batches_are(
    web: WebBench, http: httpx.AsyncClient, sdk: openai.AsyncOpenAI
) -> None:
    await ended(sdk, (await begun(sdk, b"{broken")).id)
    gate = asyncio.Event()
    web.bench.engine.will_say([64, 257], fail_after=0, error=CapacityError("full", retry_after_s=0.01))
    for _ in range(5):
        web.bench.engine.will_say([64, 65, 257], gate=gate)
    refused = asking("x", temperature=-1).replace(b"line-0", b"refused")
    batch = await begun(sdk, refused + b"\n" + asking(*"abcde"))
    found: dict[str, float] = {}
    while found.get("batch_lines running") != 3 or not found["batch_line_retries_total"]:
        await asyncio.sleep(0.005)
        found = await batch_metrics(http)
    assert {name: value for name, value in found.items() if value} == {
        "batches in_progress": 1,
        "batches_ended_total failed": 1,
        "batch_lines running": 3,
        "batch_lines waiting": 2,
        "batch_lines_ended_total failed": 1,
        "batch_line_retries_total": 1,
    }
    gate.set()
    await ended(sdk, batch.id)
    assert {name: value for name, value in (await batch_metrics(http)).items() if value} == {
        "batches_ended_total failed": 1,
        "batches_ended_total completed": 1,
        "batch_lines_ended_total failed": 1,
        "batch_lines_ended_total succeeded": 5,
        "batch_line_retries_total": 1,
    }


async def test_a_cancelled_batch_keeps_what_has_ended(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    batch = await begun(sdk, asking(*"ab"))
    await ended(sdk, batch.id)
    gate = asyncio.Event()
    batch = await begun(sdk, asking("first", "second", "third", "fourth"))
    web.bench.engine.will_say([64, 257])
    for _ in range(3):
        web.bench.engine.will_say([64, 65, 257], gate=gate)
    while (await sdk.batches.retrieve(batch.id)).request_counts.completed < 1:
        await asyncio.sleep(0.005)
    cancelling = await sdk.batches.cancel(batch.id)
    assert cancelling.status == "cancelling"
    batch = await ended(sdk, batch.id)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("cancelled", 1, None)
    assert batch.cancelling_at <= batch.cancelled_at
    assert len(await lines_of(sdk, batch.output_file_id)) == 1
    await web.bench.engine.idle.wait()
    assert len(web.bench.engine.aborted) == 3
    assert (await sdk.batches.cancel(batch.id)).status == "cancelled"
    with pytest.raises(openai.ConflictError, match="is completed"):
        await sdk.batches.cancel((await sdk.batches.list()).data[-1].id)


async def test_a_batch_expires_with_its_window(
    web: WebBench, sdk: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_AT_ONCE", 2)  # the last lines are given up with a third write
    for _ in range(3):
        web.bench.engine.will_say([64, 65, 257], gate=asyncio.Event())
    batch = await begun(sdk, asking(*"abcde"), completion_window="1m")
    while len(web.bench.engine.submitted) < 3:
        await asyncio.sleep(0.005)
    web.bench.clock.now += 61
    web.batches._wake("")  # as a new batch of the tenant would
    batch = await ended(sdk, batch.id)
    assert (batch.status, batch.request_counts.model_dump()) == ("expired", {"total": 5, "completed": 0, "failed": 5})
    lines = await lines_of(sdk, batch.error_file_id)
    assert [(line["custom_id"], line["response"], line["error"]["code"]) for line in lines] == [
        (f"line-{n}", None, "batch_expired") for n in range(5)
    ]
    await web.bench.engine.idle.wait()


async def test_a_restart_goes_on_where_it_was(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    gate = asyncio.Event()
    web.bench.engine.will_say([64, 257])
    for _ in range(3):
        web.bench.engine.will_say([64, 65, 257], gate=gate)
    batch = await begun(sdk, asking(*"abcdefgh"))
    while (await sdk.batches.retrieve(batch.id)).request_counts.completed < 1:
        await asyncio.sleep(0.005)
    await web.batches.aclose()
    web.restart()
    counts = web.batches.counts()
    assert (counts.unfinished, counts.lines_left) == ({"in_progress": 1}, 7)
    await web.start_batches()
    async with web.client() as client:
        sdk = sdk.with_options(http_client=client)
        batch = await ended(sdk, batch.id)
        assert batch.request_counts.model_dump() == {"total": 8, "completed": 8, "failed": 0}
        names = [line["custom_id"] for line in await lines_of(sdk, batch.output_file_id)]
    assert sorted(names) == [f"line-{n}" for n in range(8)]
    assert len(web.bench.engine.submitted) == 7  # the line that had ended is not run again


async def test_tenants_take_turns(web: WebBench, http: httpx.AsyncClient, sdk: openai.AsyncOpenAI) -> None:
    """A tenant's one line does not wait for the end of another's batch, and nobody sees another's files."""
    gate = asyncio.Event()
    for _ in range(3):
        web.bench.engine.will_say([64, 65, 257], gate=gate)
    long = await begun(sdk, asking(*[str(n) for n in range(20)]))
    while len(web.bench.engine.submitted) < 3:
        await asyncio.sleep(0.005)
    other = openai.AsyncOpenAI(
        api_key="any", base_url="http://sessile/v1", http_client=http, default_headers={"x-sessile-tenant": "other"}
    )
    short = await begun(other, asking("short"))
    while (await other.batches.retrieve(short.id)).status == "validating":
        await asyncio.sleep(0.005)
    gate.set()
    short = await ended(other, short.id)
    await ended(sdk, long.id)
    order = [turn.tenant for turn in web.bench.engine.submitted]
    assert order.index("other") < 12  # of 21
    for look in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await look(long.id)
    for find in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            await find(long.input_file_id)
    with pytest.raises(openai.NotFoundError):
        await other.batches.create(input_file_id=long.input_file_id, endpoint=CHAT, completion_window="24h")
    assert [batch.id for batch in (await other.batches.list()).data] == [short.id]
    assert {file.purpose for file in (await other.files.list()).data} == {"batch", "batch_output"}


async def test_files_are_listed_read_and_deleted(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    ids = []
    for number in range(4):
        file = await sdk.files.create(
            file=(f"{number}.jsonl", b"x" * number),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (file.bytes, file.filename, file.purpose, file.object) == (number, f"{number}.jsonl", "batch", "file")
        assert file.expires_at == file.created_at + 3600
        ids.append(file.id)
    page = await sdk.files.list(limit=3, order="asc")
    assert ([file.id for file in page.data], page.has_more) == (ids[:3], True)
    assert [file.id async for file in sdk.files.list(limit=3)] == ids[::-1]  # over two pages
    assert [file.id for file in (await sdk.files.list(purpose="batch_output")).data] == []
    assert (await sdk.files.content(ids[3])).content == b"xxx"
    assert (await sdk.files.delete(ids[3])).deleted
    for again in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            await again(ids[3])
    web.bench.clock.now += 3700
    await web.batches._store.prune(web.bench.clock.now)
    assert (await sdk.files.list()).data == []
    assert list((web.folder / "files").iterdir()) == []


async def test_files_and_batches_are_bounded(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="30000"):
        await sdk.files.create(file=("big", b"x" * 30_001), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="--batches-max-file-bytes") as large:
        await sdk.files.create(file=("big", b"x" * 200_000), purpose="batch")
    assert large.value.status_code == 413
    web.bench.engine.will_say([64, 65, 257], gate=asyncio.Event())
    first = await begun(sdk, asking("a"))
    with pytest.raises(openai.ConflictError, match="reads file"):
        await sdk.files.delete(first.input_file_id)
    await begun(sdk, asking("b"))
    with pytest.raises(openai.RateLimitError, match="2 batches are not over"):
        await begun(sdk, asking("c"))
    for _ in range(6):
        await sdk.files.create(file=("f", b"x"), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="there are 9 files") as full:
        await sdk.files.create(file=("f", b"x"), purpose="batch")
    assert (full.value.status_code, full.value.code) == (413, "storage_full")


async def test_an_upload_that_says_it_is_too_long_is_refused_before_it_is_read() -> None:
    async def never() -> Any:
        raise AssertionError("nothing is read")

    headers = [(b"content-type", b"multipart/form-data; boundary=x"), (b"content-length", b"200000")]
    with pytest.raises(BodyTooLarge, match=r"longer than 30000 bytes .*--batches-max-file-bytes"):
        async with uploaded(Request({"type": "http", "headers": headers}, never), 30_000):
            pass


BAD_BATCHES: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "/v1/embeddings"}, "endpoint"),
    ({"completion_window": "soon"}, "completion_window"),
    ({"completion_window": "31d"}, "completion_window"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {"k": 1}}, "metadata[...]"),
    ({"input_file_id": "file-none"}, "input_file_id"),
    ({"input_file": "x"}, "input_file"),
]


async def test_a_bad_batch_names_its_field(http: httpx.AsyncClient) -> None:
    for fields, param in BAD_BATCHES:
        body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **fields}
        response = await http.post("/v1/batches", json=body)
        status = 404 if param == "input_file_id" else 400
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)


BAD_UPLOADS: list[tuple[dict[str, Any], str]] = [
    ({"data": {"purpose": "batch"}}, "content-type"),
    ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "other"),
    ({"data": {"purpose": "fine-tune"}, "files": {"file": b"x"}}, "purpose"),
    ({"files": {"file": b"x"}}, "purpose"),
    (
        {"data": {"purpose": "batch", "expires_after[seconds]": "9"}, "files": {"file": b"x"}},
        "expires_after[anchor]",
    ),
    ({"content": b"--x\r\nbroken", "headers": {"content-type": "multipart/form-data; boundary=x"}}, "purpose"),
    ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, "body"),
]


async def test_a_bad_upload_names_its_field(http: httpx.AsyncClient) -> None:
    for form, param in BAD_UPLOADS:
        response = await http.post("/v1/files", **form)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


async def test_what_has_no_effect_is_reported(http: httpx.AsyncClient, sdk: openai.AsyncOpenAI) -> None:
    file = await sdk.files.create(file=("in.jsonl", asking("a")), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", "output_expires_after": {}}
    response = await http.post("/v1/batches", json=body)
    assert response.headers["x-sessile-ignored"] == "output_expires_after"
    await ended(sdk, response.json()["id"])
