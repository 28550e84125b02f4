"""Batches over HTTP, as OpenAI's own client asks for them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

CHAT = "/v1/chat/completions"


def asking(*texts: str, url: str = CHAT, **fields: Any) -> bytes:
    lines = []
    for index, text in enumerate(texts):
        said = {"messages": [{"role": "user", "content": text}]} if url == CHAT else {"prompt": text}
        said = {"input": text} if url == "/v1/responses" else said
        body = {"model": "m", **said, **fields}
        lines.append(json.dumps({"custom_id": f"line-{index}", "method": "POST", "url": url, "body": body}))
    return "\n".join(lines).encode()


async def begun(sdk: openai.AsyncOpenAI, content: bytes, endpoint: Any = CHAT, **fields: Any) -> Any:
    file = await sdk.files.create(file=("in.jsonl", content), purpose="batch")
    fields = {"completion_window": "24h"} | fields
    return await sdk.batches.create(input_file_id=file.id, endpoint=endpoint, **fields)


async def ended(sdk: openai.AsyncOpenAI, batch_id: str) -> Any:
    while True:
        batch = await sdk.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        await asyncio.sleep(0.005)


async def lines_of(sdk: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in (await sdk.files.content(file_id)).text.splitlines()]


async def batch_metrics(http: httpx.AsyncClient) -> dict[str, float]:
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    return {
        " ".join([sample.name.removeprefix("sessile_"), *sample.labels.values()]): sample.value
        for family in families
        if family.name.startswith("sessile_batch")
        for sample in family.samples
    }
