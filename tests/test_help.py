"""Every flag and argument of every command says in its help what it is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import pytest

from sessile.bench_agent.cli import build_parser
from sessile.bench_agent.commands.catalogue import COMMANDS
from sessile.prompt_lint.arguments import parser as prompt_lint_parser
from sessile.server.command_line import _build_parser as sessile_parser
from sessile.server.keys_command import keys_parser
from sessile.server.sessions_command import sessions_parser
from sessile.server.store_command import store_parser

PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "sessile": sessile_parser,
    "sessile sessions": sessions_parser,
    "sessile keys": keys_parser,
    "sessile store": store_parser,
    "prompt-lint": prompt_lint_parser,
    "bench-agent": lambda: build_parser(COMMANDS),
}


def undescribed(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from (f"{name} {argument}" for argument in undescribed(command))
        elif not action.help:
            yield "/".join(action.option_strings) or str(action.metavar or action.dest)


@pytest.mark.parametrize("program", PARSERS)
def test_every_flag_and_argument_is_described(program: str) -> None:
    assert list(undescribed(PARSERS[program]())) == []
