"""``/tokenize`` and ``/detokenize``: what a turn would be given, and the text of tokens."""

from __future__ import annotations

import httpx
import pytest
from web_bench import WebBench

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hé 🐘"}]


async def test_a_conversation_is_the_prompt_that_its_turn_runs(web: WebBench, http: httpx.AsyncClient) -> None:
    answer = (await http.post("/tokenize", json={"messages": MESSAGES})).json()
    assert answer["count"] == len(answer["tokens"]) > 0
    assert answer["max_model_len"] == web.bench.engine.info.context_length
    web.says("yes")
    usage = (await http.post("/v1/chat/completions", json={"messages": MESSAGES})).json()["usage"]
    assert usage["prompt_tokens"] == answer["count"]


async def test_a_text_there_and_back(http: httpx.AsyncClient) -> None:
    text = "def f(x):\n    return 'é🐘'\n"
    answer = (await http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert len(answer["token_strs"]) == answer["count"]
    assert (await http.post("/detokenize", json={"tokens": answer["tokens"]})).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": False}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "colour": 1}, "colour"),
        ("/tokenize", {"prompt": "x", "model": "another"}, "model"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_bad_input_names_its_field(http: httpx.AsyncClient, path: str, body: dict, field: str) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == field
