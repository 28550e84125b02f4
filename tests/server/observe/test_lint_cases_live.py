"""The recorded cases of broken caches, sent to a live front: the miss is reported, with the rule and the place.

Only what this server can suffer counts. A case whose break costs nothing here (a parameter that changes no prompt, call
ids that the template does not print, shapes of content that render alike) must be reused, and not be reported.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_front import LiveFront, live_front

from sessile.prompt_lint.request import ApiShape, shape_of
from sessile.server.web.anthropic.bodies import MessagesBody
from sessile.server.web.bodies import ChatBody

CASES = Path(__file__).resolve().parents[3].parent / "shared" / "lint" / "cases"
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
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")
CHAT_FIELDS = {field.encode_name for field in msgspec.structs.fields(ChatBody)}
MESSAGES_FIELDS = {field.encode_name for field in msgspec.structs.fields(MessagesBody)}


@dataclass
class Outcome:
    """What became of the pairs that a case names."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)


def sent_cases() -> list[dict[str, Any]]:
    """The traces that the server's endpoints take."""
    found = []
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        if case["kind"] == "trace" and all(is_taken(body) for body in case["requests"]):
            found.append(case)
    return found


def is_taken(body: dict[str, Any]) -> bool:
    """A chat or messages request without pictures, which the server refuses."""
    is_chat = shape_of(body) in (ApiShape.OPENAI_CHAT, ApiShape.ANTHROPIC)
    return is_chat and "image_url" not in json.dumps(body["messages"])


def sendable(body: dict[str, Any]) -> dict[str, Any]:
    """What the endpoint takes, with a short answer."""
    fields = CHAT_FIELDS if shape_of(body) is ApiShape.OPENAI_CHAT else MESSAGES_FIELDS
    kept = {key: value for key, value in body.items() if key in fields}
    messages = [
        message if message["role"] != "tool" else {"tool_call_id": "call", **message} for message in body["messages"]
    ]
    return {**kept, "messages": messages, "max_tokens": 4, "temperature": 0}


async def send_all(front: LiveFront, case: dict[str, Any]) -> list[tuple[int, int, dict[str, Any] | None]]:
    """Of each request: its prompt's tokens, those of them that were cached, and the miss."""
    sessions = case.get("sessions") or [f"session of {case['id']}"] * len(case["requests"])
    outcomes = []
    for body, session in zip(case["requests"], sessions, strict=True):
        if shape_of(body) is ApiShape.OPENAI_CHAT:
            usage = await front.chat(sendable(body), session)
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            outcomes.append((usage["prompt_tokens"], cached, usage["miss"]))
        else:
            outcomes.append(await send_message(front, sendable(body), session))
    return outcomes


async def send_message(front: LiveFront, body: dict[str, Any], session: str) -> tuple[int, int, dict[str, Any] | None]:
    """The same over Anthropic's API, which also tells the reason in its own words."""
    answer = await front.client.post("/v1/messages", json=body, headers={"x-claude-code-session-id": session})
    assert answer.status_code == 200, answer.text
    usage, miss = answer.json()["usage"], answer.json()["usage"]["miss"]
    assert ("diagnostics" in answer.json()) == (miss is not None)
    if miss is not None and miss["path"] is not None:
        changed = answer.json()["diagnostics"]["cache_miss_reason"]["type"]
        assert miss["path"].startswith(changed.removesuffix("_changed"))
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached, miss


def judge(case: dict[str, Any], sent: list[tuple[int, int, dict[str, Any] | None]], outcome: Outcome) -> None:
    for place in case["expect"].get("at", []):
        _, cached, miss = sent[place["pair"][1]]
        name, rule = f"{case['id']} {place['pair']}", case["expect"]["rule"]
        path = place.get("path") or place["parameters"][0]
        if miss is None and cached > 0.8 * sent[place["pair"][0]][0]:
            outcome.reused.append(name)
        elif miss is not None and (miss["rule"], miss["path"]) == (rule, path):
            outcome.right.append(name)
        else:
            outcome.wrong.append(f"{name}: wanted {rule} {path}, got {miss and (miss['rule'], miss['path'])}")


async def test_rule_and_place_of_at_least_95_percent(tmp_path: Path) -> None:
    outcome = Outcome()
    for number, case in enumerate(sent_cases()):
        names = tuple({body["model"] for body in case["requests"]})
        template = case.get("chat_template") or TEMPLATE
        async with live_front(tmp_path / str(number), template=template, names=names) as front:
            sent = await send_all(front, case)
            if case["expect"]["category"] is None:
                unexpected = [miss["rule"] for _, _, miss in sent if miss is not None]
                assert not set(unexpected) - set(case["expect"].get("allow") or ()), case["id"]
                continue
            judge(case, sent, outcome)
    judged = len(outcome.right) + len(outcome.wrong)
    assert judged >= 35
    assert len(outcome.right) >= 0.95 * judged, outcome.wrong
