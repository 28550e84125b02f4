"""Contents that are gone, cut or changed behind the server's back: the batch ends, and says what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from asked_batches import asking, batch_metrics, begun, ended, lines_of
from web_bench import WebBench

from sessile.sessions.batches import worker
from sessile.sessions.batches.config import BatchesConfig

GONE = "is not in the server's data folder any more"


@pytest.fixture
async def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebBench]:
    """Batches do not run yet."""
    monkeypatch.setattr(worker, "_STORE_RETRY_S", 0.01)
    with WebBench(tmp_path / "data", batches_config=BatchesConfig(concurrency=2)) as web:
        yield web
        await web.batches.aclose()


@pytest.fixture
async def sdk(http: httpx.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="any", base_url="http://sessile/v1", http_client=http, max_retries=0)


def content_of(web: WebBench, file_id: str) -> Path:
    return web.folder / "files" / file_id


def told(batch: Any) -> list[tuple[str, int | None]]:
    return [(problem.code, problem.line) for problem in batch.errors.data]


async def half_run(web: WebBench, sdk: openai.AsyncOpenAI, gate: asyncio.Event) -> Any:
    """A batch of six lines: one has ended, two run until the gate opens, three are not begun."""
    web.bench.engine.will_say([64, 257])
    for _ in range(2):
        web.bench.engine.will_say([64, 65, 257], gate=gate)
    batch = await begun(sdk, asking(*"abcdef"))
    await web.start_batches()
    while (await sdk.batches.retrieve(batch.id)).request_counts.completed < 1 or len(web.bench.engine.submitted) < 3:
        await asyncio.sleep(0.005)
    return batch


async def after_restart(web: WebBench, batch_id: str) -> Any:
    """The batch as the next process tells it."""
    await web.batches.aclose()
    web.restart()
    async with web.client() as client:
        sdk = openai.AsyncOpenAI(api_key="any", base_url="http://sessile/v1", http_client=client, max_retries=0)
        return await sdk.batches.retrieve(batch_id)


async def test_a_batch_whose_file_is_gone_fails_and_the_next_one_runs(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    lost = await begun(sdk, asking("a"))
    sound = await begun(sdk, asking("b"))
    content_of(web, lost.input_file_id).unlink()
    await web.start_batches()
    batch = await ended(sdk, lost.id)
    assert (batch.status, batch.request_counts.total) == ("failed", 0)
    (problem,) = batch.errors.data
    assert (problem.code, problem.param, problem.line) == ("input_file_lost", "input_file_id", None)
    assert f"the content of file {lost.input_file_id} is lost: it {GONE}" in problem.message
    assert "send the file again" in problem.message
    assert (await ended(sdk, sound.id)).status == "completed"
    assert await after_restart(web, lost.id) == batch


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[: content.index(b"\n") + 1],  # whole lines
        lambda content: content + content,
        lambda _: b"",
    ],
    ids=["half a file", "its first line", "twice", "nothing"],
)
async def test_a_file_of_another_length_is_not_run_as_if_it_were_whole(
    web: WebBench, sdk: openai.AsyncOpenAI, change: Callable[[bytes], bytes]
) -> None:
    batch = await begun(sdk, asking(*"abcd"))
    path = content_of(web, batch.input_file_id)
    sent = path.read_bytes()
    path.write_bytes(change(sent))
    await web.start_batches()
    batch = await ended(sdk, batch.id)
    assert (batch.status, told(batch)) == ("failed", [("input_file_lost", None)])
    assert f"it has {len(change(sent))} bytes, {len(sent)} were sent" in batch.errors.data[0].message
    assert web.bench.engine.submitted == []


async def test_a_file_that_goes_while_its_batch_runs(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    """What has ended is in the output file; over the restart the batch finds that the rest is missing."""
    batch = await half_run(web, sdk, asyncio.Event())
    content_of(web, batch.input_file_id).unlink()
    assert (await after_restart(web, batch.id)).status == "in_progress"
    await web.start_batches()
    async with web.client() as client:
        sdk = sdk.with_options(http_client=client)
        batch = await ended(sdk, batch.id)
        assert (batch.status, told(batch)) == ("failed", [("input_file_lost", None)])
        assert batch.request_counts.model_dump() == {"total": 6, "completed": 1, "failed": 0}
        assert batch.finalizing_at <= batch.failed_at
        assert [line["custom_id"] for line in await lines_of(sdk, batch.output_file_id)] == ["line-0"]
        found = await batch_metrics(client)
    assert (found["batches_ended_total failed"], found["batches_stalled"]) == (1, 0)


async def test_a_line_that_is_not_what_it_was_is_told_with_its_number(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    batch = await half_run(web, sdk, asyncio.Event())
    path = content_of(web, batch.input_file_id)
    await web.batches.aclose()
    path.write_bytes(path.read_bytes().replace(b'"line-4"', b'"line-4 '))
    web.restart()
    await web.start_batches()
    async with web.client() as client:
        batch = await ended(sdk.with_options(http_client=client), batch.id)
    assert (batch.status, told(batch)) == ("failed", [("input_file_lost", 5)])


async def test_a_file_that_cannot_be_read_is_waited_for_and_said(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    batch = await begun(sdk, asking(*"ab"))
    path = content_of(web, batch.input_file_id)
    aside = path.rename(web.folder / "aside")
    path.symlink_to(path)  # ELOOP, as a disk that fails says EIO
    await web.start_batches()
    while web.batches.counts().stalled != 1:
        await asyncio.sleep(0.005)
    assert (await sdk.batches.retrieve(batch.id)).status == "validating"
    aside.rename(path)  # in one step: never gone
    assert (await ended(sdk, batch.id)).request_counts.completed == 2
    assert web.batches.counts().stalled == 0


async def test_it_is_not_waited_for_beyond_the_window(web: WebBench, sdk: openai.AsyncOpenAI) -> None:
    batch = await begun(sdk, asking(*"ab"), completion_window="1m")
    path = content_of(web, batch.input_file_id)
    path.unlink()
    path.symlink_to(path)
    await web.start_batches()
    while web.batches.counts().stalled != 1:
        await asyncio.sleep(0.005)
    web.bench.clock.now += 61
    batch = await ended(sdk, batch.id)
    assert (batch.status, told(batch)) == ("failed", [("input_file_unreadable", None)])


async def test_a_lost_content_is_told_apart_from_a_deleted_file(web: WebBench, http: httpx.AsyncClient) -> None:
    form = {"data": {"purpose": "batch"}, "files": {"file": asking("a")}}
    sent = (await http.post("/v1/files", **form)).json()  # type: ignore[arg-type]
    url = f"/v1/files/{sent['id']}/content"
    path = content_of(web, sent["id"])
    path.write_bytes(path.read_bytes()[:-1])
    for what in (f"it has {sent['bytes'] - 1} bytes, {sent['bytes']} were written", GONE):
        answer = await http.get(url)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "store_error")
        assert what in answer.json()["error"]["message"]
        path.unlink(missing_ok=True)
    await http.delete(f"/v1/files/{sent['id']}")
    assert (await http.get(url)).json()["error"]["code"] == "file_not_found"
