"""Damaged input gives an error with its place or is judged; nothing else is raised."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessile.prompt_lint.code.analysis import Language, analyse_source
from sessile.prompt_lint.code.expressions import Expressions
from sessile.prompt_lint.engine import TraceLinter
from sessile.prompt_lint.errors import LintError, UnusableInput
from sessile.prompt_lint.readers.detect import open_trace
from sessile.prompt_lint.request import Request, shape_of

FORMATS = Path(__file__).parent / "formats"
JUNK: list[Any] = [None, 1, 1.5, True, "", [], {}, "x", [None], {"a": None}, [[]], {"type": 5}, {"content": {"b": [1]}}]


def damaged(value: Any, rng: random.Random, share: float) -> Any:
    if rng.random() < share:
        return copy.deepcopy(rng.choice(JUNK))
    if isinstance(value, dict):
        return {k: damaged(v, rng, share) for k, v in value.items() if rng.random() > share / 2}
    if isinstance(value, list):
        return [damaged(v, rng, share) for v in value]
    return value


def lint(stream: bytes) -> None:
    with contextlib.suppress(LintError):
        linter = TraceLinter()
        for i, request in enumerate(open_trace("x", io.BytesIO(stream)).requests):
            request.index = i
            linter.feed(request)
        linter.findings()


@pytest.mark.parametrize("name", sorted(p.name for p in FORMATS.iterdir()))
def test_damaged_samples(name: str) -> None:
    rng = random.Random(name)
    content = (FORMATS / name).read_bytes()
    for _ in range(40):
        if name.endswith(".txt"):
            at = rng.randrange(len(content))
            lint(content[:at] + bytes([rng.randrange(256)]) + content[at + rng.randrange(20) :])
        else:
            texts = content.decode().splitlines() if name.endswith(".jsonl") else [content.decode()]
            lint("\n".join(json.dumps(damaged(json.loads(t), rng, 0.03)) for t in texts).encode())


def test_damaged_cases(cases: list[Any], bodies_of_case: Callable[[Any], list[dict[str, Any]]]) -> None:
    rng = random.Random(5)
    traces = [c for c in cases if c.is_trace]
    for _ in range(200):
        linter = TraceLinter()
        for i, body in enumerate(bodies_of_case(rng.choice(traces)) * 2):
            changed = damaged(body, rng, 0.05)
            shape = shape_of(changed) if isinstance(changed, dict) else None
            if shape is not None:
                linter.feed(Request(changed, shape, i))
        linter.findings()


def test_cut_sources(cases: list[Any]) -> None:
    """A tolerant parser reads any beginning of a file; Python says that it is none."""
    rng = random.Random(3)
    for case in cases:
        if case.content["kind"] != "code":
            continue
        language, text = Language(case.content["language"]), case.content["code"]
        for _ in range(4):
            at = rng.randrange(len(text) + 1)
            cut = text[:at] + rng.choice(["", "}", "`", "(", "${"]) + text[at + 2 :]
            refuses = contextlib.suppress(LintError) if language is Language.PYTHON else contextlib.nullcontext()
            with refuses:
                analyse_source("x", cut, language)


PIECES = (
    *("{", "}", "[", "]", "(", ")", "`${", "`", "<", ">", ",", ":", ";", "=", "=>", "...", ".", "?", "@", "*", "\n"),
    *("a", "1", "'b'", "class A", "function f", "async", "get", "static", "for", "of", "if", "else", "try", "catch"),
    *("return", "new", "switch", "case", "export", "import", "type T", "interface I", "const", "do", "while"),
)


def test_brackets_that_nothing_closes() -> None:
    """No order of tokens sends the reader back to where it was."""
    rng = random.Random(7)
    for _ in range(6000):
        text = "messages " + " ".join(rng.choices(PIECES, k=12))
        analyse_source("x", text, Language.TYPESCRIPT)


def test_what_a_call_gets_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that fill placeholders, one in the other: none takes twice as long as the one in it."""
    depth, evaluated = 16, 0
    value_of = Expressions.value_of

    def counted(self: Expressions, node: Any) -> Any:
        nonlocal evaluated
        evaluated += 1
        return value_of(self, node)

    monkeypatch.setattr(Expressions, "value_of", counted)
    nested = 'chain.invoke({"now": ' * depth + "time.time()" + "})" * depth
    code = f'import time\ndef ask(chain):\n    system_prompt = "It is {{now}}."\n    return {nested}\n'
    assert [f.rule for f in analyse_source("a.py", code, Language.PYTHON)] == ["PL101"]
    assert evaluated < 10 * depth


def test_an_attribute_nested_without_end_names_its_line() -> None:
    attributes = [{"key": f"llm.input_messages.0.message.{'a.0.' * 1500}x", "value": {"stringValue": "v"}}]
    spans = {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": attributes}]}]}]}
    with pytest.raises(UnusableInput, match="nested too deeply") as caught:
        list(open_trace("x", io.BytesIO(json.dumps(spans).encode())).requests)
    assert caught.value.line == 1


@pytest.mark.parametrize("answer", ["{" + "-" * 100_000 + "1: 2}", "{1: " + "+".join(["1"] * 50_000) + "}", "{[1]: 2}"])
def test_an_answer_in_a_log_that_is_no_literal(answer: str) -> None:
    log = (
        "[2026-01-01 00:00:00] Receive: obj=GenerateReqInput(rid='a', text='hello')\n"
        f"[2026-01-01 00:00:01] Finish: obj=GenerateReqInput(rid='a', x) out={answer}\n"
    )
    (request,) = open_trace("x", io.BytesIO(log.encode())).requests
    assert request.usage is None


@pytest.mark.parametrize(
    "answer",
    ["{'meta_info': 5}", "{'meta_info': {'prompt_tokens': 'x'}}", "{'text': 5}", "{'meta_info': {'e2e_latency': 'x'}}"],
)
def test_an_answer_in_a_log_of_other_types_names_its_line(answer: str) -> None:
    log = (
        "[2026-01-01 00:00:00] Receive: obj=GenerateReqInput(rid='a', text='hello')\n"
        f"[2026-01-01 00:00:01] Finish: obj=GenerateReqInput(rid='a', x) out={answer}\n"
    )
    with pytest.raises(UnusableInput, match="sglang-log record has another type") as caught:
        list(open_trace("x", io.BytesIO(log.encode())).requests)
    assert caught.value.line == 2
