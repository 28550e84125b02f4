"""Every command line that the README and the docs show is one that its program takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sessile.bench_agent.cli import build_parser
from sessile.bench_agent.commands.catalogue import COMMANDS
from sessile.prompt_lint.arguments import parser as prompt_lint_parser
from sessile.server.command_line import parse_command_line
from sessile.server.config import all_settings
from sessile.server.keys_command import keys_parser
from sessile.server.sessions_command import sessions_parser
from sessile.server.store_command import store_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
APART = {"sessions": sessions_parser, "keys": keys_parser, "store": store_parser}
BLOCK = re.compile(r"^```(?:console|sh|bash)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"^(?:\$ )?((?:sessile|bench-agent|prompt-lint) (?:.*\\\n)*.*)$", re.MULTILINE)


def lines_of(page: Path) -> list[list[str]]:
    shown = (line for block in BLOCK.findall(page.read_text()) for line in LINE.findall(block))
    return [shlex.split(line.replace("\\\n", " "), comments=True) for line in shown]


SHOWN = [(page.name, words) for page in PAGES for words in lines_of(page)]


def take(words: list[str]) -> None:
    program, *arguments = words[: words.index("<")] if "<" in words else words
    if program == "bench-agent":
        build_parser(COMMANDS).parse_args(arguments)
    elif program == "prompt-lint":
        prompt_lint_parser().parse_args(arguments)
    elif arguments[0] in APART:
        APART[arguments[0]]().parse_args(arguments[1:])
    else:
        parse_command_line(arguments)


@pytest.mark.parametrize(("page", "words"), SHOWN, ids=[f"{page}: {' '.join(words[:3])}" for page, words in SHOWN])
def test_a_line_is_taken(page: str, words: list[str]) -> None:
    take(words)  # what is not taken ends the program


def test_there_are_lines_of_each_program() -> None:
    assert {"sessile", "bench-agent", "prompt-lint"} <= {words[0] for _, words in SHOWN}
    assert len(SHOWN) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_flag_that_takes_no_value_is_shown_with_none(page: Path) -> None:
    switches = [setting.flag for setting in all_settings() if setting.type_name == "bool"]
    wrong = re.findall(rf"(?:{'|'.join(switches)}) (?:true|false|on|off|0|1)\b", page.read_text())
    assert wrong == []
