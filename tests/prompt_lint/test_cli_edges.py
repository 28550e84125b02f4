"""The command line where something is wrong: values out of bounds, outputs not to be written, files that vanish."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest

from sessile.prompt_lint import watch
from sessile.prompt_lint.cli import main
from sessile.prompt_lint.config import Output, Profile
from sessile.prompt_lint.profiles import PROFILES
from sessile.prompt_lint.report.writers import OUTPUT_FORMATS

RULES = "Follow every rule of the handbook, one after the other. " * 120
CLOCK = 'import time\ndef system_prompt():\n    return f"It is {time.time()}. Rules."\n'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = []
    for i in range(3):
        talk = [{"role": "user" if k % 2 == 0 else "assistant", "content": f"turn {k}"} for k in range(2 * i + 1)]
        head = {"role": "system", "content": f"It is 10:1{i}:05.\n{RULES}"}
        lines.append(json.dumps({"request": {"model": "qwen3", "messages": [head, *talk]}, "session_id": "s"}))
    path.write_text("\n".join(lines) + "\n")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments, "--isolated"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--fail-on", "never", "--max-lost-tokens", "0"), 1),  # zero is a value
        (("--fail-on", "error", "--error-tokens", "9999", "--error-share", "0"), 1),
        (("--fail-on", "error", "--error-tokens", "0", "--error-share", "1"), 1),
        (("--fail-on", "error", "--error-tokens", "9999", "--error-share", "1"), 0),
    ],
)
def test_zero_is_a_value(
    arguments: tuple[str, ...], status: int, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "check", str(trace), *arguments)[0] == status


@pytest.mark.parametrize(
    ("option", "value", "key"),
    [
        ("--max-lost-tokens", "-1", "max-lost-tokens"),
        ("--error-share", "1.5", "error-share"),
        ("--warning-share", "-0.1", "warning-share"),
        ("--error-share", "nan", "error-share"),
        ("--error-tokens", "-1", "error-tokens"),
        ("--prefill-rate", "0", "prefill-rate"),
        ("--prefill-rate", "-3", "prefill-rate"),
        ("--kv-tokens", "0", "kv-tokens"),
    ],
)
def test_values_out_of_bounds_name_the_option(
    option: str, value: str, key: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "check", str(trace), option, value)
    assert status == 2
    assert key in err


@pytest.mark.parametrize(
    "line",
    [
        'profile = "nope"',
        'fail-on = "sometimes"',
        'output-format = "pdf"',
        "error-share = 2.0",
        'select = "PL1"',
        'select = ["PL999"]',
        'input-format = "csv"',
        "[per-file-ignores]\n'*.py' = ['PL999']",
    ],
)
def test_a_wrong_value_in_a_file_is_a_sentence(
    line: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "prompt-lint.toml"
    config.write_text(line + "\n")
    assert main(["check", str(trace), "--config", str(config)]) == 2
    assert capsys.readouterr().err.startswith("prompt-lint: ")


def test_the_words_of_a_file_are_those_of_the_code() -> None:
    assert set(get_args(Profile)) == set(PROFILES)
    assert set(get_args(Output)) == set(OUTPUT_FORMATS)


@pytest.mark.parametrize("command", [("check",), ("baseline", "write")])
def test_an_output_that_cannot_be_written(
    command: tuple[str, ...], trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, *command, str(trace), "-o", str(tmp_path / "none" / "x"))
    assert status == 2
    assert "cannot be written" in err


def test_a_terminal_without_unicode(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["check", str(trace), "--isolated"]) == 1
    assert b"\\u2192" in written.getvalue()


def test_a_pipe_is_read(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(trace.read_bytes()))
    writer.start()
    status, out, _ = run(capsys, "check", str(pipe), "--output-format", "concise")
    writer.join()
    assert status == 1
    assert "PL101" in out


def test_a_folder_that_cannot_be_listed(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = trace.parent / "closed"
    closed.mkdir()
    listed = Path.iterdir

    def iterdir(path: Path) -> object:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    status, out, err = run(capsys, "check", str(trace.parent), "--output-format", "concise")
    assert status == 2
    assert "PL101" in out
    assert f"{closed}: cannot be read: Permission denied" in err


def test_links_in_a_circle_are_not_followed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trace.parent / "again").symlink_to(trace.parent)
    (trace.parent / "nowhere.py").symlink_to("gone.py")
    (trace.parent / "self.py").symlink_to("self.py")
    status, out, _ = run(capsys, "check", str(trace.parent), "--output-format", "json")
    assert status == 1
    assert len(json.loads(out)["findings"]) == 2


def test_saved_reports_are_compared(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "report.json"
    run(capsys, "check", str(trace), "--output-format", "json", "-o", str(saved))
    status, out, _ = run(capsys, "compare", str(saved), str(trace))
    assert (status, out.count("new:"), out.count("gone:")) == (0, 0, 0)
    document = json.loads(saved.read_text())
    saved.write_text(json.dumps({**document, "findings": []}))
    assert run(capsys, "compare", str(saved), str(trace))[0] == 1
    saved.write_text(json.dumps({**document, "version": 2}))
    assert run(capsys, "compare", str(saved), str(trace))[0] == 2
    saved.write_text(json.dumps({**document, "findings": [{"rule": "PL101"}]}))
    assert run(capsys, "compare", str(saved), str(trace))[0] == 2


def test_a_watch_goes_on_when_a_file_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text(CLOCK)
    rounds = iter([path.unlink, lambda: path.write_text(CLOCK)])
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: next(rounds)())
    status, out, err = run(capsys, "watch", str(path), "--rounds", "3", "--output-format", "concise")
    assert status == 0
    assert out.count("PL101") == 2
    assert "no such file or folder" in err


def test_python_of_another_version_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.py"
    path.write_text('print "system", messages\n')
    status, _, err = run(capsys, "check", str(path))
    assert status == 2
    assert f"not Python {sys.version_info.major}.{sys.version_info.minor}" in err


def test_deep_nesting_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep.ts"
    path.write_text("const system = " + "[" * 3000 + "]" * 3000)
    status, _, err = run(capsys, "check", str(path))
    assert status == 2
    assert "nested too deeply" in err
    for name in ("long.ts", "long.py"):
        path = tmp_path / name
        path.write_text("system = " + " + ".join(['"role"'] * 900))
        assert run(capsys, "check", str(path))[0] == 0
