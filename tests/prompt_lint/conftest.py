"""Reads the cases that are data files: one folder a rule, `clean-…` files must give nothing.

Two forms: the long one, with every request in full, and a short one in which `{{RULES}}`, `{{DOC}}`, `{{LOG}}` and
`{{TOOLS}}` stand for long texts and `expect` lists the findings: `[rule, severity, pair or null, path]`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sessile.prompt_lint import diagnose
from sessile.prompt_lint.code.analysis import Language, analyse_source
from sessile.prompt_lint.engine import TraceLinter, TraceOptions
from sessile.prompt_lint.findings import Finding
from sessile.prompt_lint.inputs import gather
from sessile.prompt_lint.rendering import ChatTemplate
from sessile.prompt_lint.request import Request, Usage, shape_of
from sessile.prompt_lint.run import Check, CheckOptions
from sessile.prompt_lint.selection import Selection

CASES = Path(__file__).parent / "cases"

RULES = "Travel desk handbook. Keep to every rule.\n" + "\n".join(
    f"Rule {i}. A request for route {i * 7 % 23} goes to desk {i % 5} first; quote the fare class, "
    f"never promise seat {i}, and close with the booking code in capital letters."
    for i in range(1, 41)
)
DOC = "\n".join(
    f"Section {i}. Valve {i * 3 % 17} opens at {20 + i} bar and closes before pump {i % 6} is serviced; "
    f"grease point {i % 9} takes {1 + i % 4} strokes."
    for i in range(1, 61)
)
LOG = "\n".join(f"row {i}: belt {i % 5} ran {i * 3 % 50} s, tray {i * 7 % 31} ok" for i in range(1, 140))
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text * 6,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]},
        },
    }
    for name, key, text in (
        ("book_seat", "seat", "Books one seat on a train. "),
        ("find_route", "route", "Finds a route by its number. "),
        ("send_mail", "body", "Sends a mail to the traveller. "),
    )
]
ANTHROPIC_TOOLS: list[Any] = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in TOOLS
]
_TEXTS = {"{{RULES}}": RULES, "{{RULES_CRLF}}": RULES.replace("\n", "\r\n"), "{{DOC}}": DOC, "{{LOG}}": LOG}
_LISTS = {"{{TOOLS}}": TOOLS, "{{ANTHROPIC_TOOLS}}": ANTHROPIC_TOOLS}


@dataclass(frozen=True)
class Expected:
    """One finding that a case wants. None matches anything."""

    rule: str
    severity: str
    pair: tuple[int, int] | None
    path: str | None
    char: int | None = None
    line: int | None = None


@dataclass(frozen=True)
class Case:
    """One data file."""

    rule: str
    file: Path
    content: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.rule}/{self.file.stem}"

    @property
    def is_clean(self) -> bool:
        return self.file.stem.startswith("clean-")

    @property
    def is_trace(self) -> bool:
        return bool(self.content["kind"] == "trace")

    def expected(self) -> list[Expected]:
        """What must be found, in order; for cases that name no place, one entry without a place."""
        expect = self.content["expect"]
        if isinstance(expect, list):
            return [Expected(r, s, tuple(p) if isinstance(p, list) else None, *rest) for r, s, p, *rest in expect]
        if expect["category"] is None:
            return []
        at = expect.get("at", [])
        if isinstance(at, dict):
            return [Expected(expect["rule"], expect["severity"], None, None, line=at["line"])]
        places = [
            Expected(
                expect["rule"], expect["severity"], tuple(a["pair"]), a.get("path") or a["parameters"][0], a.get("char")
            )
            for a in at
        ]
        return places or [Expected(expect["rule"], expect["severity"], None, None)]


def expand(value: Any) -> Any:
    """Put the long texts in."""
    if isinstance(value, str):
        if value in _LISTS:
            return _LISTS[value]
        for macro, text in _TEXTS.items():
            value = value.replace(macro, text)
        return value
    if isinstance(value, list):
        return [expand(v) for v in value]
    if isinstance(value, dict):
        return {k: expand(v) for k, v in value.items()}
    return value


def all_cases() -> list[Case]:
    """Every data file, by folder."""
    return [
        Case(file.parent.name, file, json.loads(file.read_text(encoding="utf-8")))
        for file in sorted(CASES.glob("*/*.json"))
    ]


def requests_of(content: dict[str, Any]) -> list[Request]:
    """The requests of a trace case."""
    found = []
    for i, body in enumerate(expand(content["requests"])):
        shape = shape_of(body)
        assert shape is not None
        request = Request(body, shape, i, file="case")
        _dress(request, content, i)
        found.append(request)
    return found


def _dress(request: Request, content: dict[str, Any], i: int) -> None:
    request.provider = content.get("provider")
    request.response_token_ids = request.body.get("response_token_ids")
    if content.get("sessions"):
        request.session = content["sessions"][i]
    if content.get("purposes"):
        request.purpose = content["purposes"][i]
    if content.get("timestamps"):
        request.timestamp = datetime.datetime.fromisoformat(content["timestamps"][i]).timestamp()
    responses = content.get("responses") or []
    if i < len(responses):
        request.response_text = responses[i]
    for key, values in content.get("each", {}).items():
        value = values[i]
        setattr(request, key, Usage(*value) if key == "usage" and value is not None else value)


def lint_trace(content: dict[str, Any]) -> list[Finding]:
    """Findings of a trace case."""
    vocabulary: dict[str, str] | None = content.get("vocab")

    def decode(ids: list[int]) -> str | None:
        if vocabulary is None or any(str(i) not in vocabulary for i in ids):
            return None
        return "".join(vocabulary[str(i)] for i in ids)

    template = content.get("chat_template")
    options = TraceOptions(
        template=ChatTemplate(template) if template else None,
        decode=decode,
        bos_token_id=content.get("bos_token_id"),
        profile=content.get("profile"),
        kv_tokens=content.get("kv_tokens"),
        extra_rules=frozenset(content.get("extra_rules", [])),
    )
    return TraceLinter(options).feed_all(requests_of(content))


def lint_case(case: Case) -> list[Finding]:
    """Findings of a case of either kind."""
    if case.is_trace:
        return lint_trace(case.content)
    if case.content["kind"] == "file":
        return lint_file(case.content["file"], case.content["text"])
    return analyse_source("case", case.content["code"], Language(case.content["language"]))


def lint_file(name: str, text: str) -> list[Finding]:
    """Findings of a file with a name and a text, through the whole check."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text.encode())
        options = CheckOptions(Selection.of(), TraceOptions())
        return Check(options).run(gather([str(path)], [])).findings


def matches(finding: Finding, wanted: Expected) -> bool:
    """Exact in rule and severity, and in every part of the place that the case names."""
    place = finding.location
    return (
        finding.rule == wanted.rule
        and finding.severity.word == wanted.severity
        and wanted.pair in (None, finding.pair)
        and wanted.path in (None, place.path)
        and wanted.char in (None, place.char)
        and wanted.line in (None, place.line)
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`trace_case`, `code_case` and `file_case` run over the data files of their kind."""
    for kind in ("trace", "code", "file"):
        name = f"{kind}_case"
        if name in metafunc.fixturenames:
            cases = [c for c in all_cases() if c.content["kind"] == kind]
            metafunc.parametrize(name, cases, ids=[c.name for c in cases])


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """All data files."""
    return all_cases()


@pytest.fixture(scope="session")
def judge_case() -> Callable[[Case], list[str]]:
    """Lints a case and says what is not as wanted; an empty list is right."""
    return differences


def differences(case: Case) -> list[str]:
    """What a case gives that it should not, and the other way round."""
    found, wanted = lint_case(case), case.expected()
    shown = [
        f"{f.rule} {f.severity.word} {f.pair} {f.location.path} {f.location.line} {f.location.char}"
        f" -{f.cost.tokens}: {f.message}"
        for f in found
    ]
    if len(found) == len(wanted) and all(matches(f, w) for f, w in zip(found, wanted, strict=True)):
        return []
    return [*(f"wanted {w}" for w in wanted), *(f"found {s}" for s in shown), "different"]


_NOT_OF_A_PAIR = ("PL407", "PL6", "PL706", "PL8", "PL9")


@pytest.fixture(scope="session")
def pairs_of_case() -> Callable[[Case], list[bool]]:
    """For each pair that a case expects: whether `diagnose` names its rule and place."""

    def judge(case: Case) -> list[bool]:
        if not case.is_trace or case.is_clean or case.rule.startswith(_NOT_OF_A_PAIR):
            return []
        sessions, template = case.content.get("sessions"), case.content.get("chat_template")
        outcomes = []
        for wanted in case.expected():
            if wanted.pair is None:
                continue
            before, after = (requests_of(case.content)[i] for i in wanted.pair)
            same = not sessions or sessions[wanted.pair[0]] == sessions[wanted.pair[1]]
            given = ChatTemplate(template) if template else None
            found = diagnose(before, after, template=given, same_session=same)
            outcomes.append(
                found is not None and found.rule == wanted.rule and wanted.path in (None, found.location.path)
            )
        return outcomes

    return judge
