"""A batch on a real server that is killed in its middle: every line ends once, and says what a live request says."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from served_llama import make_served_llama
from server_process import ServerProcess

from sessile.sessions.batches.database import BatchDatabase
from sessile.sessions.batches.store import DATABASE_NAME

pytestmark = pytest.mark.timeout(300)
FLAGS = ("--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "16MiB", "--batches-concurrency", "2")
CHAT = "/v1/chat/completions"
LINES = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = make_served_llama(tmp_path_factory.mktemp("model") / "tiny-llama")
    with ServerProcess(tmp_path_factory.mktemp("data"), "--model", str(model), *FLAGS) as server:
        yield server


def body(number: int) -> dict[str, Any]:
    said = [{"role": "user", "content": f"question {number}"}]
    return {"messages": said, "max_tokens": 40 + 5 * number, "temperature": 0, "ignore_eos": True}


def finished(client: openai.OpenAI, batch_id: str) -> Any:
    while (batch := client.batches.retrieve(batch_id)).status not in ("completed", "failed", "expired"):
        time.sleep(0.05)
    return batch


def lines_kept(server: ServerProcess, batch_id: str, folder: Path) -> int:
    """How many lines' results a killed server has left, read from a copy: the next one finds the store as it was."""
    for path in server.data_dir.glob(f"{DATABASE_NAME}*"):
        shutil.copy(path, folder)
    with closing(BatchDatabase(folder / DATABASE_NAME)) as database:
        return len(database.lines_with_results(batch_id))


def test_a_batch_survives_kill_9(server: ServerProcess, tmp_path: Path) -> None:
    lines = [{"custom_id": f"l{n}", "method": "POST", "url": CHAT, "body": body(n)} for n in range(LINES)]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    with openai.OpenAI(api_key="any", base_url=f"{server.url}/v1") as client:
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        while (client.batches.retrieve(batch.id).request_counts or 0).completed < 2:  # type: ignore[union-attr]
            time.sleep(0.01)
        server.kill()
        known = lines_kept(server, batch.id, tmp_path)
        assert 2 <= known < LINES
        server.start()
        batch = finished(client, batch.id)
        assert batch.status == "completed"
        assert batch.request_counts.model_dump() == {"total": LINES, "completed": LINES, "failed": 0}
        answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
        assert sorted(answer["custom_id"] for answer in answers) == sorted(line["custom_id"] for line in lines)
        usages = [answer["response"]["body"]["usage"] for answer in answers]
        assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
        assert batch.usage.output_tokens == sum(40 + 5 * n for n in range(LINES))
        rate = httpx.get(f"{server.url}/v1/cache/hit-rate").json()
        ran = sum(usage["prompt_tokens"] for usage in usages[known:])
        assert rate["prompt_tokens"] == ran  # by this process: each line that was left, once
        assert [found.id for found in client.batches.list()] == [batch.id]
    by_name = {answer["custom_id"]: answer["response"]["body"]["choices"][0]["message"] for answer in answers}
    for number in (0, 9, LINES - 1):
        live = httpx.post(f"{server.url}{CHAT}", json=body(number), timeout=60).json()
        assert live["choices"][0]["message"] == by_name[f"l{number}"]
