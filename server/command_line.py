"""The command line of ``sessile``: its commands, and a flag for each key of the configuration."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..sessions.errors import ConfigError
from .config import CONFIG_VARIABLE, all_settings
from .settings import Setting, shown_size, suggest

COMMANDS = {
    "serve": "serve a model over HTTP and gRPC",
    "models": "list the models in the cache folder",
    "doctor": "say what was found on this machine and what is wrong with it",
}
APART = {
    "sessions": "look at the sessions of a running server, fork, export, import and close them",
    "keys": "create, list and revoke API keys",
    "store": "copy the session store, or go back to its last good copy",
}  # commands with a command line of their own
_SETTINGS_OF = {"models": ("server",)}  # commands that do not go by all settings, and by which
_REPORTS = ("models", "doctor")  # commands that print a report and take --json


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was asked for. ``flags`` maps names of settings (``http_port``) to their texts."""

    command: str
    flags: Mapping[str, str]
    config_file: Path | None
    as_json: bool


class _Parser(argparse.ArgumentParser):
    """argparse, with errors as ConfigError and without guessing at shortened flags."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_help_format, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, field="flag", remedy=f"`{self.prog} --help` lists all flags")


def _help_format(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34, width=min(shutil.get_terminal_size().columns, 120))


def parse_command_line(arguments: Sequence[str]) -> CommandLine:
    """Read the arguments after the program's name.

    Raises:
        ConfigError: an unknown command or flag, with the nearest one that exists.
        SystemExit: after ``--help``, ``--version``, or without any command.
    """
    parser = _build_parser()
    if not arguments:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    parsed, rest = parser.parse_known_args(list(arguments))
    if rest:
        raise _unknown(rest[0])
    given = vars(parsed)
    names = {setting.name for setting in all_settings()}
    flags = {name: _text(value) for name, value in given.items() if name in names}
    config_file = given.get("config")
    return CommandLine(given["command"], flags, Path(config_file) if config_file else None, bool(given.get("as_json")))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(argument: str) -> ConfigError:
    name = argument.split("=", 1)[0]
    if not name.startswith("-"):
        return ConfigError(f"unexpected argument {name!r}", field=name, remedy="`sessile --help` shows the usage")
    known = [setting.flag for setting in all_settings()] + ["--config", "--help", "--json"]
    remedy = suggest(name, known) or "`sessile serve --help` lists all flags"
    return ConfigError(f"unknown flag {name}", field=name, remedy=remedy)


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sessile", description="A session inference server for LLM agents.")
    parser.add_argument("--version", action="version", version=f"sessile {installed_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, description in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=description,
            description=description[0].upper() + description[1:] + ".",
            epilog="Each flag is also a key of the TOML file and a variable: --http-port 9000, [http] port = 9000 and "
            "SESSILE_HTTP_PORT=9000 say the same. Flags win over variables, variables over the file.",
        )
        command.add_argument("--config", metavar="FILE", help=f"TOML file (variable: {CONFIG_VARIABLE})")
        if name in _REPORTS:
            command.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
        _add_settings(command, _SETTINGS_OF.get(name))
    for name, description in APART.items():
        commands.add_parser(name, help=description, add_help=False)
    return parser


def _add_settings(command: argparse.ArgumentParser, tables: Sequence[str] | None) -> None:
    """Flags for the settings of ``tables``; None: of all."""
    groups: dict[str, Any] = {}
    for setting in all_settings():
        if tables is not None and setting.table not in tables:
            continue
        if setting.table not in groups:
            groups[setting.table] = command.add_argument_group(f"[{setting.table}]")
        options: dict[str, Any] = {"dest": setting.name, "default": argparse.SUPPRESS, "help": _help(setting)}
        if setting.type_name == "bool":
            options["action"] = argparse.BooleanOptionalAction
        else:
            kind = setting.type_name
            options["metavar"] = kind if "|" in kind else kind.upper()
        groups[setting.table].add_argument(setting.flag, **options)


def _help(setting: Setting) -> str:
    match setting.default:
        case None | "" | ():
            return setting.description.replace("%", "%%")
        case tuple() as items:
            default = ",".join(items)
        case int() as size if setting.is_size:
            default = shown_size(size)
        case value:
            default = _text(value)
    return f"{setting.description} (default: {default})".replace("%", "%%")


def installed_version() -> str:
    """The version of this installation."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sessile")
    except PackageNotFoundError:
        return "unknown"
