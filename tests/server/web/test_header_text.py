"""Any text can be told in a header, and read back from it."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import unquote

import httpx
from hypothesis import given
from hypothesis import strategies as st

from sessile.server.web.application import create_app
from sessile.server.web.header_text import header_text
from sessile.server.web.names import ServedName


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_it_is_visible_ascii_and_reads_back(text: str) -> None:
    shown = header_text(text)
    assert shown.isascii()
    assert shown.isprintable() or not shown
    assert '"' not in shown
    assert unquote(shown) == text


def test_plain_names_stay_as_they_are() -> None:
    assert header_text("SmolLM2-135M-Instruct (Q4_1) é") == "SmolLM2-135M-Instruct (Q4_1) %C3%A9"
    assert header_text("\ud800") == "?"


async def test_a_model_of_any_name_is_served(stage: Any, chat_body: dict[str, object]) -> None:
    parts = dataclasses.replace(stage.parts(), served=ServedName("模型"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(parts)), base_url="http://x") as client:
        answer = await client.post("/v1/chat/completions", json={**chat_body, "model": "模型"})
        assert (answer.status_code, answer.headers["x-sessile-model"]) == (200, "%E6%A8%A1%E5%9E%8B")
        assert (await client.get("/v1/models/模型")).json()["id"] == "模型"
