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
CHAT_FIELDS = {struct.encode_name for struct in msgspec.structs.fields(ChatBody)}


@dataclass
class Outcome:
    """What became of the pairs that a case names."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)


def chat_cases() -> list[dict[str, Any]]:
    found = []
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        if case["kind"] == "trace" and all(is_taken(body) for body in case["requests"]):
            found.append(case)
    return found


def is_taken(body: dict[str, Any]) -> bool:
    """A chat request without pictures, which the server refuses."""
    return shape_of(body) is ApiShape.OPENAI_CHAT and "image_url" not in json.dumps(body["messages"])


def sendable(body: dict[str, Any]) -> dict[str, Any]:
    """What the endpoint takes, with a short answer."""
    kept = {key: value for key, value in body.items() if key in CHAT_FIELDS}
    messages = [
        message if message["role"] != "tool" else {"tool_call_id": "call", **message} for message in body["messages"]
    ]
    return {**kept, "messages": messages, "max_tokens": 4, "temperature": 0}


async def send_all(front: LiveFront, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Usage of each request."""
    sessions = case.get("sessions") or [f"session of {case['id']}"] * len(case["requests"])
    return [await front.chat(sendable(body), session) for body, session in zip(case["requests"], sessions, strict=True)]


def judge(case: dict[str, Any], usages: list[dict[str, Any]], outcome: Outcome) -> None:
    for place in case["expect"].get("at", []):
        usage = usages[place["pair"][1]]
        miss, name = usage["miss"], f"{case['id']} {place['pair']}"
        path = place.get("path") or place["parameters"][0]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if miss is None and cached > 0.8 * usages[place["pair"][0]]["prompt_tokens"]:
            outcome.reused.append(name)
        elif miss is not None and (miss["rule"], miss["path"]) == (case["expect"]["rule"], path):
            outcome.right.append(name)
        else:
            outcome.wrong.append(
                f"{name}: wanted {case['expect']['rule']} {path}, got {miss and (miss['rule'], miss['path'])}"
            )


async def test_rule_and_place_of_at_least_95_percent(tmp_path: Path) -> None:
    outcome = Outcome()
    for number, case in enumerate(chat_cases()):
        names = tuple({body["model"] for body in case["requests"]})
        template = case.get("chat_template") or TEMPLATE
        async with live_front(tmp_path / str(number), template=template, names=names) as front:
            usages = await send_all(front, case)
            if case["expect"]["category"] is None:
                unexpected = [usage["miss"]["rule"] for usage in usages if usage["miss"] is not None]
                assert not set(unexpected) - set(case["expect"].get("allow") or ()), case["id"]
                continue
            judge(case, usages, outcome)
    judged = len(outcome.right) + len(outcome.wrong)
    assert judged >= 35
    assert len(outcome.right) >= 0.95 * judged, outcome.wrong
