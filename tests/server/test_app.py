"""The entry point: exit statuses, messages on the standard error, and quick, torch-free help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sessile.server import app
from sessile.sessions.errors import EngineError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--htp-port", "1"], "did you mean --http-port?"),
        (["serve", "--http-port", "x"], "--http-port is 'x'"),
        (["serve", "--config", "/nowhere.toml"], "/nowhere.toml cannot be read"),
    ],
)
def test_wrong_usage_is_status_2(arguments, words, capsys) -> None:
    assert app.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_wrong_variable_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setenv("SESSILE_HTP_PORT", "1")
    assert app.main(["doctor"]) == 2
    assert "did you mean SESSILE_HTTP_PORT?" in capsys.readouterr().err


def test_a_failure_is_status_1_with_its_remedy(monkeypatch, capsys) -> None:
    def fail(*_: object) -> int:
        raise EngineError("the engine cannot start", remedy="give it memory")

    monkeypatch.setattr(app, "_serve", fail)
    assert app.main(["serve"]) == 1
    assert capsys.readouterr().err == "sessile: the engine cannot start (give it memory)\n"


@pytest.mark.parametrize("missing", ["torch", "uvloop", "fastapi"])
def test_without_the_servers_packages_the_extra_is_named(missing, tmp_path) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from sessile.server.app import main\n"
        f"sys.exit(main(['serve', '--http-port', '0', '--grpc-port', '0', '--data-dir', {str(tmp_path)!r}]))"
    )
    done = _run("-c", script)
    assert done.returncode == 1, done.stderr
    assert f"{missing} is not installed" in done.stderr
    assert "sessile[server]" in done.stderr


def test_help_needs_none_of_the_servers_packages() -> None:
    script = (
        "import sys\n"
        "from sessile.server.app import main\n"
        "try:\n    main(['serve', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'fastapi', 'uvicorn', 'grpc', 'zmq', 'uvloop', 'numpy'} & set(sys.modules)))"
    )
    done = _run("-c", script)
    assert done.stdout.rstrip().endswith("[]"), done.stdout[-200:]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": str(ROOT / ".import-root"), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
