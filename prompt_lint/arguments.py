"""The command line's arguments."""

from __future__ import annotations

import argparse

from .profiles import PROFILES
from .readers.detect import FORMAT_NAMES
from .report.writers import OUTPUT_FORMATS

_LISTED = ("text", "json", "markdown")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(
        prog="prompt-lint", description="Find what breaks the prefix cache, say what it costs, repair it."
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="check traces, code and templates")
    check.add_argument("paths", nargs="+", metavar="PATH", help="files or folders; - is standard input")
    _common(check)
    _output(check)
    _fixing(check)
    rule = commands.add_parser("rule", help="explain a rule")
    rule.add_argument("code", help="a rule's id or name")
    rules = commands.add_parser("rules", help="list the rules")
    rules.add_argument("--output-format", choices=_LISTED, default="text", help="default: text")
    probe = commands.add_parser("probe-template", help="check that a chat template only appends")
    probe.add_argument("template", metavar="FILE|MODEL", help="a template, tokenizer_config.json or model folder")
    _output(probe)
    _baseline(commands)
    compare = commands.add_parser("compare", help="compare two traces or reports")
    compare.add_argument("before", metavar="A", help="a trace, or a report of `check --output-format json`")
    compare.add_argument("after", metavar="B", help="what A became")
    _common(compare)
    compare.add_argument("--output-format", choices=_LISTED, default="text", help="default: text")
    watch = commands.add_parser("watch", help="check again when files change, or follow a server's misses")
    watch.add_argument("paths", nargs="+", metavar="PATH|URL", help="files, folders, or the HTTP address of a server")
    watch.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between looks (default: 2)")
    watch.add_argument("--rounds", type=int, default=0, metavar="N", help="stop after so many looks (0: never)")
    _common(watch)
    _output(watch)
    return root


def _baseline(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    baseline = commands.add_parser("baseline", help="accept what is there")
    actions = baseline.add_subparsers(dest="action", required=True, metavar="ACTION")
    write = actions.add_parser("write", help="write today's findings to a file")
    write.add_argument("paths", nargs="+", metavar="PATH", help="files or folders")
    write.add_argument(
        "--output", "-o", default="prompt-lint-baseline.json", metavar="FILE", help="default: %(default)s"
    )
    _common(write)


def _codes(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _common(command: argparse.ArgumentParser) -> None:
    rules = command.add_argument_group("rules")
    rules.add_argument(
        "--select", type=_codes, metavar="CODES", help="rules or prefixes to turn on (comma separated; ALL)"
    )
    rules.add_argument("--extend-select", type=_codes, default=[], metavar="CODES", help="turn these on as well")
    rules.add_argument("--ignore", type=_codes, default=[], metavar="CODES", help="turn these off")
    rules.add_argument(
        "--per-file-ignores", action="append", default=[], metavar="GLOB:CODES", help="turn these off in these files"
    )
    rules.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="files that are not read")
    rules.add_argument("--no-gitignore", action="store_true", help="check the sources that .gitignore leaves out too")
    rules.add_argument("--baseline", metavar="FILE", help="report only what is not in this file")
    config = command.add_argument_group("configuration")
    config.add_argument("--config", metavar="FILE", help="instead of the nearest pyproject.toml or prompt-lint.toml")
    config.add_argument("--isolated", action="store_true", help="read no configuration file")
    trace = command.add_argument_group("traces")
    trace.add_argument(
        "--input-format", choices=FORMAT_NAMES, metavar="NAME", help=f"one of: {', '.join(FORMAT_NAMES)}"
    )
    trace.add_argument("--stdin-filename", default="-", metavar="NAME", help="what findings call the standard input")
    trace.add_argument(
        "--profile", choices=tuple(PROFILES), help="whose cache it is (default: by the form of the requests)"
    )
    trace.add_argument("--chat-template", metavar="FILE", help="look at the rendered prompts")
    trace.add_argument("--tokenizer", metavar="DIR", help="look at the tokens (a tokenizer.json or its folder)")
    trace.add_argument("--bos-token-id", type=int, metavar="ID", help="the token that begins each prompt")
    trace.add_argument(
        "--prefill-rate", type=float, metavar="TOKENS_PER_SECOND", help="tells lost tokens as milliseconds, too"
    )
    trace.add_argument("--kv-tokens", type=int, metavar="N", help="how many tokens the server's cache holds")
    trace.add_argument(
        "--prices", metavar="FILE", help="TOML: dated, [models.NAME] input, cached ($ for a million tokens)"
    )
    limits = command.add_argument_group("limits")
    limits.add_argument(
        "--fail-on",
        choices=("error", "warning", "info", "never"),
        help="least severity that ends with status 1 (default: warning)",
    )
    limits.add_argument("--max-lost-tokens", type=int, metavar="N", help="fail when more tokens are lost")
    shown = "of the prompt tokens, from which a cause is"
    limits.add_argument("--error-share", type=float, metavar="X", help=f"share {shown} an error (default: 0.2)")
    limits.add_argument(
        "--error-tokens", type=int, metavar="N", help="lost tokens of one request that are one, too (default: 1000)"
    )
    limits.add_argument("--warning-share", type=float, metavar="X", help=f"share {shown} a warning (default: 0.02)")


def _output(command: argparse.ArgumentParser) -> None:
    output = command.add_argument_group("output")
    output.add_argument("--output-format", choices=OUTPUT_FORMATS, help="default: text")
    output.add_argument("--output-file", "-o", metavar="FILE", help="instead of the standard output")
    output.add_argument("--statistics", action="store_true", help="findings and lost tokens by rule")
    output.add_argument(
        "--show-values", action="store_true", help="print the values that changed, not only their shape"
    )
    output.add_argument("--no-colour", "--no-color", action="store_true", help="no colours, on a terminal too")


def _fixing(command: argparse.ArgumentParser) -> None:
    fixing = command.add_argument_group("repairs")
    fixing.add_argument("--fix", action="store_true", help="repair sources; for traces, simulate the repairs")
    fixing.add_argument("--unsafe-fixes", action="store_true", help="repairs that may change what a program does, too")
    fixing.add_argument("--diff", action="store_true", help="show the repairs instead of writing them")
