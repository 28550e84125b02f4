"""What the linter says of a recorded trace, against what the server's own prefix cache does when it is replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from embedded_model import embedded_model
from recordings import recordings
from replayed_cache import BLOCK, ReplayedCache

from sessile.prompt_lint.engine import TraceLinter, TraceOptions
from sessile.prompt_lint.findings import Finding
from sessile.prompt_lint.prompt import text_prompt
from sessile.prompt_lint.readers.detect import open_trace
from sessile.prompt_lint.rendering import ChatTemplate as LintTemplate
from sessile.prompt_lint.request import ApiShape, Request
from sessile.prompt_lint.strips import Strip
from sessile.prompt_lint.text_change import TextChange
from sessile.prompt_lint.tokens import load_decoder
from sessile.server.model.source import ModelSource
from sessile.server.text.tokenizer_files import load_chat_template, load_tokenizer


@dataclass
class Replay:
    """A trace, linted and replayed with one tokenizer."""

    texts: list[str]
    findings: list[Finding]
    strips: list[Strip]
    encode: Callable[[str], list[int]]
    cached: list[int] = field(default_factory=list)

    def undone(self, finding: Finding) -> int:
        """Tokens that the server has of the finding's request once the change is undone, the earlier one sent before.

        What could stand first for every session does; else the later prompt gets the earlier one's text back.
        """
        assert finding.pair is not None
        was, now = (self.texts[i] for i in finding.pair)
        assert finding.location.char is not None
        change = TextChange(was, now, finding.location.char)
        if finding.scope == "cross-session":
            head = now[: change.position] + change.shared_text
            was, now = head + was[change.position :], head + now[change.position :]
        else:
            old, new = change.hunk
            now = now[: new.start] + old.text + now[new.end :]
        cache = ReplayedCache()
        cache.cached_tokens(self.encode(was))
        return cache.cached_tokens(self.encode(now))


@pytest.fixture(scope="module")
def model() -> ModelSource:
    return embedded_model()


@pytest.fixture(scope="module", params=["miniswe", "magagent"])
def replay(request: pytest.FixtureRequest, model: ModelSource) -> Replay:
    folder = recordings("traces", request.param)
    tokenizer = load_tokenizer(model)
    counted = load_decoder(model.path)
    linter = TraceLinter(TraceOptions(profile="sessile", decode=counted.decode, count=counted.count))
    texts: list[str] = []
    for file in sorted(folder.iterdir()):
        with file.open("rb") as stream:
            for recorded in open_trace(file.name, stream).requests:
                recorded.index = len(texts)
                texts.append(text_prompt(recorded.body)[1])
                linter.feed(recorded)
    found = linter.findings()
    replay = Replay(texts, found, linter.strips.strips, lambda text: tokenizer.encode(text, allow_special=False))
    cache = ReplayedCache()
    replay.cached = [cache.cached_tokens(replay.encode(text)) for text in texts]
    return replay


def test_reused_tokens_are_the_servers_within_a_block(replay: Replay) -> None:
    off = {
        s.index: (s.reused, c) for s, c in zip(replay.strips, replay.cached, strict=True) if abs(s.reused - c) > BLOCK
    }
    assert off == {}


def test_lost_tokens_are_the_servers_within_a_block(replay: Replay) -> None:
    """The server has as many more tokens of a request whose break is undone as the finding says it lost."""
    off = {}
    for finding in replay.findings:
        assert finding.pair is not None
        gained = replay.undone(finding) - replay.cached[finding.pair[1]]
        if abs(finding.cost.tokens - gained) > BLOCK:
            off[finding.rule, finding.pair] = (finding.cost.tokens, gained)
    assert replay.findings
    assert off == {}


def _chat(clock: str, turns: int) -> dict[str, Any]:
    rules = "\n".join(f"Rule {i}: desk {i % 7} answers route {i * 5 % 31}." for i in range(60))
    talk = [
        {"role": ("user", "assistant")[i % 2], "content": f"Turn {i}: " + "the belt stopped again; " * 9}
        for i in range(turns)
    ]
    return {"model": "m", "messages": [{"role": "system", "content": f"{clock}\n{rules}"}, *talk]}


def test_rendered_chats_lose_what_the_server_computes(model: ModelSource) -> None:
    """Clocks at the head of the system text, through the embedded model's own chat template."""
    tokenizer = load_tokenizer(model)
    template = load_chat_template(model, tokenizer)
    source = json.loads((model.path / "text.json").read_text())["chat_template"]
    linter = TraceLinter(TraceOptions(template=LintTemplate(source), count=load_decoder(model.path).count))
    cache = ReplayedCache()
    gained: list[int] = []

    def tokens(body: dict[str, Any]) -> list[int]:
        return tokenizer.encode_prompt(template.render(body["messages"]))

    bodies = [_chat(f"It is 10:1{i}:07.", 2 * i + 1) for i in range(5)]
    for i, body in enumerate(bodies):
        linter.feed(Request(body, ApiShape.OPENAI_CHAT, i, session="s"))
        before = ReplayedCache()
        before.cached_tokens(tokens(bodies[max(0, i - 1)]))
        undone = before.cached_tokens(tokens(_chat(f"It is 10:1{max(0, i - 1)}:07.", 2 * i + 1)))
        gained.append(undone - cache.cached_tokens(tokens(body)))
    found = linter.findings()
    assert [(f.rule, f.pair) for f in found] == [("PL101", (i - 1, i)) for i in range(1, 5)]
    off = [
        (f.cost.tokens, gain) for f, gain in zip(found, gained[1:], strict=True) if abs(f.cost.tokens - gain) > BLOCK
    ]
    assert off == []
