"""Traces and sources that prompt-lint and bench-agent read."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import json_changes
from fuzzing import Feed, Target

from sessile.bench_agent.errors import BenchError
from sessile.bench_agent.traces.formats import read_workload
from sessile.bench_agent.traces.source import BadLines
from sessile.prompt_lint.code.analysis import Language, analyse_source
from sessile.prompt_lint.engine import TraceLinter
from sessile.prompt_lint.errors import LintError
from sessile.prompt_lint.readers.detect import open_trace

TESTS = Path(__file__).parents[1]
LINT_SAMPLES = TESTS / "prompt_lint" / "formats"
LINT_CASES = TESTS / "prompt_lint" / "cases"
BENCH_SAMPLES = TESTS / "bench_agent" / "traces" / "samples"
SUFFIXES = (".jsonl", ".json", ".yaml", ".traj")
LANGUAGES = tuple(Language)


@contextlib.contextmanager
def _lint() -> Iterator[Feed]:
    def feed(content: bytes) -> None:
        linter = TraceLinter()
        for index, request in enumerate(open_trace("x", io.BytesIO(content)).requests):
            request.index = index
            linter.feed(request)
        linter.findings()

    yield feed


def _lint_seeds() -> list[bytes]:
    return [path.read_bytes()[:16384] for path in sorted(LINT_SAMPLES.iterdir())]


@contextlib.contextmanager
def _bench() -> Iterator[Feed]:
    """The first byte says what the file is called."""
    with tempfile.TemporaryDirectory() as name:

        def feed(content: bytes) -> None:
            path = Path(name) / f"trace{SUFFIXES[content[0] % len(SUFFIXES)] if content else '.json'}"
            path.write_bytes(content[1:])
            read_workload(path, BadLines())

        yield feed


def _bench_seeds() -> list[bytes]:
    return [
        bytes([SUFFIXES.index(path.suffix)]) + path.read_bytes()[:16384] for path in sorted(BENCH_SAMPLES.iterdir())
    ]


@contextlib.contextmanager
def _sources() -> Iterator[Feed]:
    """The first byte says in which language the rest is."""

    def feed(content: bytes) -> None:
        language = LANGUAGES[content[0] % len(LANGUAGES)] if content else Language.PYTHON
        analyse_source("x", content[1:].decode("utf-8", "replace"), language)

    yield feed


def _source_seeds() -> list[bytes]:
    """The shortest few cases of each language."""
    found: dict[str, list[str]] = {}
    for path in sorted(LINT_CASES.glob("*/*.json")):
        case = json.loads(path.read_text())
        if isinstance(case, dict) and case.get("kind") == "code":
            found.setdefault(case["language"], []).append(case["code"])
    return [
        bytes([LANGUAGES.index(Language(language))]) + code.encode()
        for language, codes in found.items()
        for code in sorted(codes, key=len)[:6]
    ]


CODE_WORDS = tuple(
    word.encode()
    for word in (
        "${", "`", "{{", "{%", "f'", '"""', "=>", "async ", "await ", "...", "?.", "/*", "*/", "//", "(((((", "[[[[[",
        "lambda: ", "messages", "new Date()", "datetime.now()", "Math.random()", "uuid4()", "\\", "\n    ", "<T>",
        "/[/]/g",
    )
)  # fmt: skip


def _change_bench(content: bytes, rng: object) -> bytes:
    return content[:1] + json_changes.changed(content[1:], rng)  # type: ignore[arg-type]


TARGETS = (
    Target("lint-traces", _lint, _lint_seeds, (LintError,), mutate=json_changes.changed, most_bytes=1 << 15),
    Target("bench-traces", _bench, _bench_seeds, (BenchError,), mutate=_change_bench, most_bytes=1 << 15),
    Target("lint-sources", _sources, _source_seeds, (LintError,), CODE_WORDS, most_bytes=8192),
)
