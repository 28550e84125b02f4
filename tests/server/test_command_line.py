"""The command line: every setting is a flag, and mistakes are told with the nearest right word."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessile.server.command_line import COMMANDS, parse_command_line
from sessile.server.config import all_settings
from sessile.sessions.errors import ConfigError


def test_flags_become_texts_of_settings() -> None:
    line = parse_command_line(["serve", "--http-port", "9000", "--model=x", "--no-log-requests", "--config", "a.toml"])
    assert line.command == "serve"
    assert line.flags == {"http_port": "9000", "model": "x", "log_requests": "false"}
    assert line.config_file == Path("a.toml")


def test_what_is_not_given_is_not_there() -> None:
    line = parse_command_line(["doctor", "--json"])
    assert line.flags == {}
    assert line.config_file is None
    assert line.as_json


def without_breaks(text: str) -> str:
    """Long descriptions go over lines."""
    return "".join(text.split())


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"models"}))
def test_help_lists_every_setting_with_its_default(command, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as caught:
        parse_command_line([command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for setting in all_settings():
        assert setting.flag in shown
        assert without_breaks(setting.description) in without_breaks(shown)
    assert "(default: 8000)" in shown
    assert "(default: 1GiB)" in shown
    assert "(default: )" not in shown


def test_the_list_of_models_goes_by_folders_alone(capsys) -> None:
    with pytest.raises(SystemExit):
        parse_command_line(["models", "--help"])
    shown = capsys.readouterr().out
    assert "--cache-dir PATH" in shown and "--http-port INT" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--htp-port", "1"], "did you mean --http-port?"),
        (["serve", "--http", "1"], "unknown flag --http"),
        (["serve", "extra"], "unexpected argument 'extra'"),
        (["serv"], "invalid choice"),
        (["serve", "--http-port"], "expected one argument"),
    ],
)
def test_mistakes(arguments, words) -> None:
    with pytest.raises(ConfigError, match=r"did you mean|lists all|usage") as caught:
        parse_command_line(arguments)
    assert words in str(caught.value)


def test_without_a_command_the_help_is_shown(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line([])
    assert caught.value.code == 2
    assert "serve" in capsys.readouterr().err
