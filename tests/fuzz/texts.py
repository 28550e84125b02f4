"""What models write and what people configure: tool calls, reasoning, settings."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import call_text
from fuzzing import Feed, Target

from sessile.server.config import load_config
from sessile.server.text.answer_format import AnswerFormat, ReasoningFormat, ToolFormat
from sessile.server.text.answer_parser import AnswerParser
from sessile.server.text.reasoning import ReasoningSplitter
from sessile.server.text.tool_calls import CallNumbers
from sessile.sessions.errors import ConfigError
from sessile.sessions.messages import ToolCall

FORMATS = (ToolFormat.HERMES, ToolFormat.LLAMA3, ToolFormat.MISTRAL, ToolFormat.JSON)
CALLS = [
    ToolCall(id="a", name="get_weather", arguments='{"city": "Bern", "days": [1, 2.5e3, null, true]}'),
    ToolCall(id="b", name="search", arguments='{"q": "a\\"b\\u00e9\\n{}", "deep": {"er": []}}'),
]
RENDERINGS = (
    call_text.hermes,
    call_text.llama3,
    call_text.llama3_tagged,
    call_text.mistral_list,
    call_text.mistral_named,
    call_text.mistral_with_ids,
    call_text.json_list,
    call_text.json_lines,
    call_text.json_fenced,
)


@contextlib.contextmanager
def _answers() -> Iterator[Feed]:
    """The first byte says how the rest is cut; every format reads it, with and without reasoning around it."""

    def feed(content: bytes) -> None:
        rng = random.Random(content[:1])
        text = content[1:].decode("utf-8", "replace")
        for tools in FORMATS:
            for reasoning in (ReasoningFormat.NONE, ReasoningFormat.THINK):
                chosen = AnswerFormat(tools, reasoning)
                calls = chosen.tool_parser(CallNumbers(lambda index: f"call_{index}"), ("get_weather", "search"))
                splitter = None if chosen.tags is None else ReasoningSplitter(chosen.tags, opened=rng.random() < 0.3)
                _read(AnswerParser(splitter, calls), text, rng)

    yield feed


def _read(parser: AnswerParser, text: str, rng: random.Random) -> None:
    parsed, at = call_text.Parsed(), 0
    step = rng.choice((1, 3, 17, len(text) or 1))
    while at < len(text):
        parsed.take(parser.push(text[at : at + step]))
        at += step
    parsed.take(parser.finish())
    assert len(parsed.text) + len(parsed.reasoning) <= len(text), "text came from nowhere"


WORDS = tuple(
    word.encode()
    for word in (
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "```json\n", "```",
        "<think>", "</think>", '{"name": "search", "arguments": {', '"parameters":', '{"a":', "[[[[[[[[", "}}}}", '"',
        "\\u", "\\", "1e999", "-", "null", "tru", "\u2028", "; ", "\n\n",
    )
)  # fmt: skip


@contextlib.contextmanager
def _settings() -> Iterator[Feed]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "sessile.toml"

        def feed(content: bytes) -> None:
            path.write_bytes(content)
            load_config({}, {}, path)

        yield feed


SETTINGS = b"""
data_dir = "/tmp/x"
host = "127.0.0.1"
[http]
port = 8000
max_body_bytes = "64MiB"
[engine]
block_size = 16
disk_quota_bytes = "1GiB"
[limits]
turns_per_minute = 60
[log]
level = "info"
"""

TARGETS = (
    Target(
        "answers",
        _answers,
        lambda: [b"\1" + render(CALLS).encode() for render in RENDERINGS],
        (),
        WORDS,
        most_bytes=8192,
    ),
    Target(
        "settings", _settings, lambda: [SETTINGS], (ConfigError,), (b"[http]", b"port = ", b'"', b"1e999", b"= -1\n")
    ),
)
