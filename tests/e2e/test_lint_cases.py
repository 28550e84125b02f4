"""The recorded cases of broken caches, sent to a whole server: the miss is reported, with the rule and the place.

One server process on a tiny model, over HTTP, each case as a tenant of its own. Only what this server can suffer
counts: a case whose break costs nothing here (a parameter that changes no prompt, call ids that the template does not
print, shapes of content that render alike) must be reused, and not be reported.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from case_model import make_case_model, unnatural_token
from recordings import recordings
from server_process import ServerProcess
from tokenizers import Tokenizer

from sessile.prompt_lint.request import ApiShape, shape_of
from sessile.server.web.anthropic.bodies import MessagesBody
from sessile.server.web.bodies import ChatBody

TEMPLATE = (  # prints all that a template can: tools first, then messages with their calls and the calls' ids
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.tool_call_id %}[{{ message.tool_call_id }}] {% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}\n[{{ call.id }}] {{ call.function.name }} "
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
pytestmark = pytest.mark.timeout(600)
CHAT_FIELDS = {field.encode_name for field in msgspec.structs.fields(ChatBody)}
MESSAGES_FIELDS = {field.encode_name for field in msgspec.structs.fields(MessagesBody)}
SHORT = {"max_tokens": 4}
FLAGS = ("--dtype", "bfloat16", "--threads", "1", "--kv-memory-bytes", "96MiB", "--reasoning-parser", "none")


@dataclass(frozen=True)
class Sent:
    """What a request cost. ``miss``: as its usage has it, or, if that came too late, the server's list of misses."""

    prompt_tokens: int
    cached_tokens: int
    miss: dict[str, Any] | None


@dataclass
class Outcome:
    """What became of the pairs that a case names."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)


class CaseClient:
    """Sends one case's requests, as a tenant of its own."""

    def __init__(self, server: ServerProcess, case: dict[str, Any]) -> None:
        self._server = server
        self._case = case
        self._headers = {"x-sessile-tenant": f"case-{case['id'][:2]}"}

    def send_all(self) -> list[Sent]:
        bodies = self._case["requests"]
        sessions = self._case.get("sessions") or [f"session of {self._case['id']}"] * len(bodies)
        return [self.send(body, session) for body, session in zip(bodies, sessions, strict=True)]

    def send(self, body: dict[str, Any], session: str) -> Sent:
        match shape_of(body):
            case ApiShape.OPENAI_CHAT:
                return self.post("/v1/chat/completions", self._chat(body), {"x-session-id": session})
            case ApiShape.ANTHROPIC:
                return self._message(body, session)
            case ApiShape.TOKENS:
                tokens = {"prompt": body["prompt_token_ids"], **SHORT}
                return self.post("/v1/completions", tokens, {"x-session-id": session})
            case shape:
                raise AssertionError(shape)

    def post(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Sent:
        usage = self._answer(path, body, headers)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Sent(usage["prompt_tokens"], cached, usage["miss"] or self._late_miss(usage["prompt_tokens"]))

    def misses(self) -> dict[str, Any]:
        answer = httpx.get(f"{self._server.url}/v1/cache/misses", headers=self._headers, timeout=60).json()
        assert isinstance(answer, dict)
        return answer

    def _answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        fields = {**body, "temperature": 0}
        answer = httpx.post(self._server.url + path, json=fields, headers={**self._headers, **headers}, timeout=120)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the endpoint takes, rendered as the case's template would."""
        kept = {key: value for key, value in body.items() if key in CHAT_FIELDS}
        messages = [
            message if message["role"] != "tool" else {"tool_call_id": "call", **message}
            for message in body["messages"]
        ]
        arguments = {**(body.get("chat_template_kwargs") or {}), "case": self._case["id"]}
        return {**kept, "messages": messages, "chat_template_kwargs": arguments, **SHORT}

    def _message(self, body: dict[str, Any], session: str) -> Sent:
        """The same over Anthropic's API, which also tells the reason in its own words."""
        kept = {key: value for key, value in body.items() if key in MESSAGES_FIELDS}
        answer = self._answer("/v1/messages", {**kept, **SHORT}, {"x-claude-code-session-id": session})
        usage = answer["usage"]
        miss, cached = usage["miss"], usage["cache_read_input_tokens"]
        assert ("diagnostics" in answer) == (miss is not None)
        if miss is not None and miss["path"] is not None:
            changed = answer["diagnostics"]["cache_miss_reason"]["type"]
            assert miss["path"].startswith(changed.removesuffix("_changed"))
        total = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
        return Sent(total, cached, miss or self._late_miss(total))

    def _late_miss(self, prompt_tokens: int) -> dict[str, Any] | None:
        """On a busy machine a turn may end before it is explained; it is then in the list soon after."""
        listed = self.misses()
        while listed["waiting"]:
            time.sleep(0.02)
            listed = self.misses()
        latest = listed["misses"][0] if listed["misses"] else None
        return latest if latest is not None and latest["prompt_tokens"] == prompt_tokens else None


def sendable_cases() -> list[dict[str, Any]]:
    """The traces that the server's endpoints take."""
    cases = [json.loads(path.read_text()) for path in sorted(recordings("lint", "cases").glob("*.json"))]
    return [case for case in cases if case["kind"] == "trace" and all(map(is_taken, case["requests"]))]


def is_taken(body: dict[str, Any]) -> bool:
    """Pictures are refused; what the model of case 56 answered is not what ours does (it has a test of its own)."""
    return "image_url" not in json.dumps(body) and "response_token_ids" not in body


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cases = sendable_cases()
    branches = "".join(
        f"{{% elif case == '{case['id']}' %}}{case['chat_template']}" for case in cases if case.get("chat_template")
    )
    template = "{% if false %}" + branches + "{% else %}" + TEMPLATE + "{% endif %}"
    texts = [json.dumps(body, ensure_ascii=False) for case in cases for body in case["requests"]]
    return make_case_model(tmp_path_factory.mktemp("model") / "tiny-llama", texts, template)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    names = {body["model"] for case in sendable_cases() for body in case["requests"]}
    flags = ("--model", str(model), "--model-aliases", ",".join(sorted(names)), *FLAGS)
    with ServerProcess(tmp_path_factory.mktemp("data"), *flags) as server:
        yield server


def judge(case: dict[str, Any], sent: list[Sent], outcome: Outcome) -> None:
    for place in case["expect"].get("at", []):
        before, now = (sent[number] for number in place["pair"])
        name, rule = f"{case['id']} {place['pair']}", case["expect"]["rule"]
        path = place.get("path") or place["parameters"][0]
        if now.miss is None and now.cached_tokens > 0.8 * before.prompt_tokens:
            outcome.reused.append(name)
        elif now.miss is not None and (now.miss["rule"], now.miss["path"]) == (rule, path):
            assert now.miss["first_divergent_token"] == now.cached_tokens, name
            outcome.right.append(name)
        else:
            found = now.miss and (now.miss["rule"], now.miss["path"])
            outcome.wrong.append(f"{name}: wanted {rule} {path}, got {found}, {now.cached_tokens} cached")


def test_rule_and_place_of_at_least_95_percent(server: ServerProcess) -> None:
    outcome = Outcome()
    for case in sendable_cases():
        sent = CaseClient(server, case).send_all()
        if case["expect"]["category"] is None:
            unexpected = {one.miss["rule"] for one in sent if one.miss is not None}
            assert not unexpected - set(case["expect"].get("allow") or ()), case["id"]
        else:
            judge(case, sent, outcome)
    judged = len(outcome.right) + len(outcome.wrong)
    assert judged >= 36, outcome
    assert len(outcome.right) >= 0.95 * judged, outcome.wrong


def test_an_answer_that_comes_back_in_other_tokens_is_pl704(server: ServerProcess, model: Path) -> None:
    """The rule of case 56, on what this model sampled: clients that keep texts tokenise answers another way."""
    tokenizer, times = Tokenizer.from_file(str(model / "tokenizer.json")), 40
    token = unnatural_token(tokenizer, times)
    answer = tokenizer.decode([token]) * times
    prompt = "Say the letter again and again, as long as you are allowed to:\n" * 4
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    said = {"max_tokens": times, "logit_bias": {str(token): 100}}
    client = CaseClient(server, {"id": "56 in tokens"})
    client.post("/v1/completions", {"prompt": ids, **said}, {})
    again = tokenizer.encode(answer, add_special_tokens=False).ids
    in_tokens = client.post("/v1/completions", {"prompt": [*ids, *again, *ids[:5]], **SHORT}, {})
    client = CaseClient(server, {"id": "5t"})
    client.post("/v1/completions", {"prompt": prompt, **said}, {})
    in_text = client.post("/v1/completions", {"prompt": prompt + answer + prompt[:9], **SHORT}, {})
    for sent, key in ((in_tokens, "prompt_token_ids"), (in_text, "rendered_token_ids")):
        assert sent.miss is not None, sent
        assert (sent.miss["rule"], sent.miss["path"]) == ("PL704", f"{key}[{sent.cached_tokens}]")
        assert sent.miss["first_divergent_token"] == sent.cached_tokens >= len(ids) - 1
