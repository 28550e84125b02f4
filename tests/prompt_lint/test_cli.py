"""The command line as a user sees it: exit status, formats, selection, ignores, repairs."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sessile.prompt_lint.cli import main
from sessile.prompt_lint.inputs import gather
from sessile.prompt_lint.report.writers import OUTPUT_FORMATS
from sessile.prompt_lint.rules.catalogue import CATALOGUE

CLOCK = """from datetime import datetime


def system_prompt(rules):
    return f"It is {datetime.now():%H:%M}. {rules}"
"""
LISTING = 'import os\n\n\ndef system_prompt(root):\n    return "Files:\\n" + "\\n".join(os.listdir(root))\n'
RULES = "Follow every rule of the handbook, one after the other. " * 120


def body(clock: str, turns: int, **extra: object) -> dict[str, object]:
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"turn {i}"} for i in range(2 * turns - 1)]
    return {"model": "qwen3", "messages": [{"role": "system", "content": f"It is {clock}.\n{RULES}"}, *talk], **extra}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [json.dumps({"request": body(f"10:1{i}:05", i + 1), "session_id": "s"}) for i in range(3)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "agent.py"
    path.write_text(CLOCK)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_has_the_documented_form(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", str(trace), "--isolated", "--output-format", "json")
    document = json.loads(out)
    first = document["findings"][0]
    assert status == 1
    assert document["version"] == 1
    assert first["rule"] == "PL101"
    assert first["severity"] == "error"
    assert first["location"] == {"file": str(trace), "line": 2, "request": 1, "path": "messages[0].content", "char": 10}
    assert first["pair"] == [0, 1]
    assert {"lost_tokens", "lost_share", "lost_ms", "lost_cost", "fix", "name", "message"} <= first.keys()
    assert document["summary"]["errors"] == 2
    assert "was" not in first


def test_values_are_redacted_unless_asked_for(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, hidden, _ = run(capsys, "check", str(trace), "--isolated")
    _, shown, _ = run(capsys, "check", str(trace), "--isolated", "--show-values")
    assert "10:10:05" not in hidden
    assert "99:99:99" in hidden
    assert "10:10:05" in shown


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
def test_every_format_names_rule_and_file(output_format: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", str(trace), "--isolated", "--output-format", output_format)
    assert "PL101" in out
    assert "trace.jsonl" in out


def test_junit_and_github_are_well_formed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", str(trace), "--isolated", "--output-format", "junit")
    suite = ElementTree.fromstring(out)[0]
    assert suite.get("failures") == "2"
    _, out, _ = run(capsys, "check", str(trace), "--isolated", "--output-format", "github")
    assert out.startswith("::error file=")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 1),
        (("--fail-on", "never"), 0),
        (("--ignore", "PL101"), 0),
        (("--select", "PL2"), 0),
        (("--select", "PL1"), 1),
        (("--select", "volatile-timestamp"), 1),
        (("--fail-on", "error"), 1),
        (("--per-file-ignores", "*.jsonl:PL1"), 0),
        (("--ignore", "PL101", "--max-lost-tokens", "0"), 0),
        (("--fail-on", "never", "--max-lost-tokens", "10"), 1),
        (("--exclude", "nothing"), 1),
    ],
)
def test_exit_status(arguments: tuple[str, ...], status: int, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", str(trace), "--isolated", *arguments)[0] == status


@pytest.mark.parametrize(
    "text", ["", "\n\n", "not a trace\n", '{"messages": [', '{"a": 1}\n', "[]", '{"requests": []}']
)
def test_unusable_input_is_never_clean(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    status, _, err = run(capsys, "check", str(path), "--isolated")
    assert status == 2
    assert "x.jsonl" in err


def test_missing_file_and_unknown_rule(capsys: pytest.CaptureFixture[str], code: Path) -> None:
    assert run(capsys, "check", "/nowhere/x.py", "--isolated")[0] == 2
    status, _, err = run(capsys, "check", str(code), "--isolated", "--select", "PL999")
    assert status == 2
    assert "PL999" in err


def test_truncated_line_is_named_and_the_rest_is_judged(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(trace.read_text()[:-40])
    status, out, err = run(capsys, "check", str(trace), "--isolated", "--output-format", "json")
    assert status == 2
    assert f"{trace}:3: cut off" in err
    rules = {f["rule"] for f in json.loads(out)["findings"]}
    assert rules == {"PL101", "PL903"}


def test_mixed_lines_name_the_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(trace.read_text() + '{"event": "something else"}\n')
    status, _, err = run(capsys, "check", str(trace), "--isolated")
    assert status == 2
    assert f"{trace}:4: not a request body" in err


def test_mislabelled_input(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "check", str(trace), "--isolated", "--input-format", "har")
    assert status == 2
    assert f"{trace}:1" in err


def test_standard_input(trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(trace.read_bytes())))
    assert run(capsys, "check", "-", "--isolated")[0] == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CLOCK.encode())))
    status, out, _ = run(capsys, "check", "-", "--isolated", "--stdin-filename", "a.py", "--output-format", "concise")
    assert status == 1
    assert out.startswith("a.py:5:")


@pytest.mark.parametrize(
    ("comment", "rules"),
    [
        ("  # prompt-lint: ignore[PL101] shown to a person", []),
        ("  # prompt-lint: ignore", []),
        ("  # prompt-lint: ignore[PL1]", []),
        ("  # prompt-lint: ignore[PL202]", ["PL101", "PL900"]),
    ],
)
def test_inline_ignores(comment: str, rules: list[str], code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = CLOCK.rstrip("\n").split("\n")
    code.write_text("\n".join([*lines[:-1], lines[-1] + comment]) + "\n")
    _, out, _ = run(capsys, "check", str(code), "--isolated", "--output-format", "json")
    assert [f["rule"] for f in json.loads(out)["findings"]] == rules


def test_ignores_on_the_line_above_and_for_a_file(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = CLOCK.split("\n")
    code.write_text("\n".join([*lines[:-2], "    # prompt-lint: ignore[PL101] why", *lines[-2:]]))
    assert run(capsys, "check", str(code), "--isolated")[0] == 0
    code.write_text("# prompt-lint: ignore-file[PL101]\n" + CLOCK)
    assert run(capsys, "check", str(code), "--isolated")[0] == 0


def test_fix_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "skills.py"
    path.write_text(LISTING)
    _, out, _ = run(capsys, "check", str(path), "--isolated", "--diff")
    assert '+    return "Files:\\n" + "\\n".join(sorted(os.listdir(root)))' in out
    assert path.read_text() == LISTING
    status, _, err = run(capsys, "check", str(path), "--isolated", "--fix")
    assert status == 0
    assert "Repaired 1" in err
    assert "sorted(os.listdir(root))" in path.read_text()


def test_unsafe_fixes_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "replay.py"
    source = 'import json\n\n\ndef replay(r):\n    return {"role": "assistant", "arguments": json.dumps(r.args)}\n'
    path.write_text(source)
    run(capsys, "check", str(path), "--isolated", "--fix")
    assert path.read_text() == source
    run(capsys, "check", str(path), "--isolated", "--fix", "--unsafe-fixes")
    assert "json.dumps(r.args, sort_keys=True)" in path.read_text()


def test_trace_repairs_are_simulated(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = trace.read_text()
    _, out, err = run(capsys, "check", str(trace), "--isolated", "--fix")
    assert trace.read_text() == before
    (now,) = re.findall(r"([\d.]+%) reused", out)
    assert f"simulated hit rate {now} before, 66" in err, "the rate before is the one that the summary tells"


def test_statistics(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", str(trace), "--isolated", "--statistics")
    assert out.split()[:3] == ["2", "PL101", "volatile-timestamp"]


def test_baseline(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "known.json"
    assert run(capsys, "baseline", "write", str(trace), "--isolated", "-o", str(file))[0] == 0
    assert run(capsys, "check", str(trace), "--isolated", "--baseline", str(file))[0] == 0


def test_compare(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text("\n".join(json.dumps({"request": body("noon", i + 1), "session_id": "s"}) for i in range(3)))
    status, out, _ = run(capsys, "compare", str(good), str(trace), "--isolated")
    assert status == 1
    assert "new: error PL101" in out
    status, out, _ = run(capsys, "compare", str(trace), str(good), "--isolated", "--output-format", "json")
    assert status == 0
    assert json.loads(out)["gone"][0]["rule"] == "PL101"


def test_watch_looks_once(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "watch", str(trace), "--isolated", "--rounds", "1", "--output-format", "concise")
    assert status == 0
    assert "PL101" in out


def test_configuration_file(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.prompt-lint]\nignore = ["PL101"]\n')
    assert run(capsys, "check", str(trace))[0] == 0
    (tmp_path / "prompt-lint.toml").write_text('[per-file-ignores]\n"*.py" = ["PL1"]\n')
    assert run(capsys, "check", str(trace))[0] == 1
    (tmp_path / "prompt-lint.toml").write_text('ingore = ["PL101"]\n')
    status, _, err = run(capsys, "check", str(trace))
    assert status == 2
    assert "did you mean 'ignore'" in err


def test_rule_pages(capsys: pytest.CaptureFixture[str]) -> None:
    for code in CATALOGUE:
        status, out, _ = run(capsys, "rule", code)
        assert status == 0
        for heading in ("## What it does", "## Why it matters", "## Example", "## Instead"):
            assert heading in out
    _, out, _ = run(capsys, "rules", "--output-format", "json")
    assert [r["id"] for r in json.loads(out)] == list(CATALOGUE)


def test_prices_and_prefill_rate(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('dated = "2026-01-01"\n[models.qwen3]\ninput = 2.0\ncached = 1.0\n')
    arguments = (
        "check",
        str(trace),
        "--isolated",
        "--output-format",
        "json",
        "--prices",
        str(prices),
        "--prefill-rate",
        "1000",
    )
    _, out, _ = run(capsys, *arguments)
    finding = json.loads(out)["findings"][0]
    assert finding["lost_ms"] == pytest.approx(finding["lost_tokens"], rel=0.01)
    assert finding["lost_cost"] == pytest.approx(finding["lost_tokens"] * 1e-6, rel=0.01)


def test_folder_with_code_and_traces(trace: Path, code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trace.parent / "notes.json").write_text('{"a": 1}')
    status, out, err = run(capsys, "check", str(trace.parent), "--isolated", "--output-format", "json")
    assert status == 1, err
    assert {f["scope"] for f in json.loads(out)["findings"]} == {"session", "code"}


def test_bundled_scripts_of_a_folder_are_left_out(tmp_path: Path) -> None:
    code = "const p = () => ({ role: 'system', content: `It is ${Date.now()}` });"
    (tmp_path / "own.js").write_text(code + "\n")
    (tmp_path / "chunk-7.js").write_text(code * 200)
    (tmp_path / "app.min.js").write_text(code + "\n")
    assert [path.name for path, _ in gather([str(tmp_path)], []).sources] == ["own.js"]
    assert [path.name for path, _ in gather([str(tmp_path / "app.min.js")], []).sources] == ["app.min.js"]
