"""Sources in the encodings and line ends in which people keep them, and repairs that leave everything else alone."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from sessile.prompt_lint.cli import main
from sessile.prompt_lint.code.analysis import Language, analyse_source, is_readable
from sessile.prompt_lint.errors import UnusableInput
from sessile.prompt_lint.fixes.source import fixed_file
from sessile.prompt_lint.source_files import SourceFile, source_of

SET = 'def system_prompt(names):\n    found = set(names)\n    return "Names: " + ", ".join(found)\n'
FIXED = SET.replace("join(found)", "join(sorted(found))")
SUFFIX = {Language.PYTHON: ".py", Language.TYPESCRIPT: ".ts"}


def repaired(name: str, content: bytes) -> bytes:
    source = source_of(name, content)
    language = Language.PYTHON if name.endswith(".py") else Language.TYPESCRIPT
    return fixed_file(name, source, analyse_source(name, source.text, language)).after.content()


@pytest.mark.parametrize(
    ("before", "encoding"),
    [
        ("", "utf-8"),
        ("\ufeff", "utf-8"),
        ("\ufeff", "utf-16-le"),
        ("\ufeff", "utf-16-be"),
        ("# coding: latin-1\n# caf\xe9\n", "latin-1"),
        ("# \u65e5\u672c\n", "utf-8"),
        ("X = 1\n\x0c\nY = '\u2028\x1c'\n", "utf-8"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_repair_keeps_encoding_and_line_ends(before: str, encoding: str, newline: str) -> None:
    content, wanted = ((before + text).replace("\n", newline).encode(encoding) for text in (SET, FIXED))
    assert repaired("a.py", content) == wanted


def test_line_ends_may_be_mixed() -> None:
    content = SET.replace("\n", "\r\n", 1).encode()
    assert repaired("a.py", content) == FIXED.replace("\n", "\r\n", 1).encode()


@pytest.mark.parametrize("content", [b"# caf\xe9\n", b"# coding: latin-42\n", b"\xff\xfea"])
def test_other_bytes_are_unusable(content: bytes) -> None:
    with pytest.raises(UnusableInput, match=r"a\.py: cannot be read"):
        source_of("a.py", content)


def test_a_form_feed_ends_no_line_for_ignores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.py"
    path.write_text("\x0c\n" + SET.replace("(found)\n", "(found)  # prompt-lint: ignore[PL203]\n"))
    assert main(["check", str(path), "--isolated"]) == 0
    assert "All clean" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("language", "code", "wanted"),
    [
        (Language.PYTHON, "', '.join(tuple({*names, 'a'}))", "', '.join(tuple(sorted({*names, 'a'})))"),
        (Language.PYTHON, "', '.join(list({*names, 'a'}))", "', '.join(sorted({*names, 'a'}))"),
        (
            Language.PYTHON,
            "', '.join(f'{i}{n}' for i, n in enumerate({*names, 'a'}))",
            "', '.join(f'{i}{n}' for i, n in enumerate(sorted({*names, 'a'})))",
        ),
        (Language.PYTHON, "', '.join(e.name for e in os.scandir(names))", None),
        (Language.PYTHON, "', '.join({n for n in names if n})", "', '.join(sorted({n for n in names if n}))"),
        (Language.TYPESCRIPT, "readdirSync(names).join(', ')", "readdirSync(names).sort().join(', ')"),
        (Language.TYPESCRIPT, "readdirSync(names, { withFileTypes: true }).join(', ')", None),
        (Language.TYPESCRIPT, "(await readdir(names)).join(', ')", None),
    ],
)
def test_repairs_run(language: Language, code: str, wanted: str | None) -> None:
    """What is sorted can be sorted, and stays of its kind; where that is not sure nothing is repaired."""
    head = {
        Language.PYTHON: "import os\ndef system_prompt(names):\n    return {}\n",
        Language.TYPESCRIPT: 'import {{ readdirSync }} from "fs";\n'
        "export async function systemPrompt(names) {{\n  return {};\n}}\n",
    }[language]
    name = f"a{SUFFIX[language]}"
    assert repaired(name, head.format(code).encode()).decode() == head.format(wanted or code)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("json.dumps(x)", "json.dumps(x, sort_keys=True)"),
        ("json.dumps(x,)", "json.dumps(x, sort_keys=True)"),
        ("json.dumps(\n  x,\n)", "json.dumps(\n  x, sort_keys=True\n)"),
        ("json.dumps(x, indent=2)", "json.dumps(x, indent=2, sort_keys=True)"),
        ("json.dumps(\n  x  # all of it\n)", None),
    ],
)
def test_one_more_argument(call: str, wanted: str | None) -> None:
    code = "import json\ndef replay(x):\n    return {{'role': 'assistant', 'tool_calls': [{{'arguments': {}}}]}}\n"
    assert repaired("a.py", code.format(call).encode()).decode() == code.format(wanted or call)


def test_repairs_that_touch_are_left_for_the_next_time() -> None:
    code = (
        "def system_prompt(names):\n    a = set(names)\n    return ', '.join(list(set(list(a))))\n"
        "import json\ndef replay(m, x):\n    return {'role': 'assistant', 'tool_calls': [{'arguments': json.dumps(\n"
        "        x,\n    )}]}\n"
    )
    for _ in range(3):
        code = repaired("a.py", code.encode()).decode()
        assert is_readable("a.py", code)
    assert repaired("a.py", code.encode()).decode() == code
    assert "x, sort_keys=True\n" in code


def test_what_has_no_repair_is_left_alone() -> None:
    code = (
        SET
        + "import time\ndef system_text():\n    now = time.ctime()\n"
        + "    return build(system=now, instructions=\n        time.ctime())\n"
    )
    assert repaired("a.py", code.encode()).decode() == code.replace("join(found)", "join(sorted(found))")


def test_the_compilers_warnings_are_not_told(recwarn: pytest.WarningsRecorder) -> None:
    analyse_source("a.py", 'system = "\\d" if 1is 1 else 2\n', Language.PYTHON)
    assert not recwarn.list


def test_all_of_a_line_is_repaired_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.py"
    path.write_text("def system_prompt(a, b):\n    return f'{set(a)} and {set(b)} and {set(a) | set(b)}'\n")
    assert main(["check", str(path), "--isolated", "--fix"]) == 0
    assert "sorted(set(a))} and {sorted(set(b))} and {sorted(set(a) | set(b))}" in path.read_text()
    assert "Repaired 3" in capsys.readouterr().err


def test_what_comes_from_standard_input_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text("# another text\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SET.encode())))
    assert main(["check", "-", "--isolated", "--fix", "--stdin-filename", str(path)]) == 1
    assert path.read_text() == "# another text\n"
    assert "PL203" in capsys.readouterr().out


def test_every_case_is_repaired_at_most_once(cases: list[Any]) -> None:
    """A second repair changes nothing, and a repair leaves a program."""
    count = 0
    for case in cases:
        language = Language(case.content["language"]) if case.content["kind"] == "code" else None
        if language not in SUFFIX:
            continue
        name, source = f"a{SUFFIX[language]}", SourceFile(case.content["code"])
        for _ in range(4):
            fixed = fixed_file(name, source, analyse_source(name, source.text, language))
            count += len(fixed.repaired)
            if fixed.after.raw == source.raw:
                break
            source = fixed.after
            assert is_readable(name, source.text), case.name
        else:
            pytest.fail(f"{case.name} is repaired for ever")
    assert count > 5
