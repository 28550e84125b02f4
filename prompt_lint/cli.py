"""The command line: `prompt-lint`. Exit status 0 clean, 1 findings, 2 unusable input or a wrong option."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

import msgspec

from .arguments import parser
from .compare import compare
from .config import Config, checked_config, find_config, load_config
from .engine import TraceOptions
from .errors import LintConfigError, LintError, UnusableInput
from .findings import Severity
from .fixes.source import apply_fixes, diffs
from .inputs import SourceFilter, gather
from .prices import DEFAULT_PRICES, load_prices
from .probe import probe_template
from .rendering import load_template
from .report.plain import statistics
from .report.saved import saved_report
from .report.writers import render
from .rules.catalogue import CATALOGUE, OFF_BY_DEFAULT, page
from .run import Check, CheckOptions, Report
from .selection import Baseline, Selection, expand_codes, read_baseline
from .severity import Thresholds
from .tokens import load_decoder
from .watch import watch

CLEAN, FOUND, UNUSABLE = 0, 1, 2
_MOST_ROUNDS = 10


def main(argv: list[str] | None = None) -> int:
    """Run a command; the exit status."""
    arguments = parser().parse_args(argv)
    try:
        return _COMMANDS[arguments.command](arguments)
    except LintError as error:
        print(f"prompt-lint: {error}", file=sys.stderr)  # noqa: T201
        return UNUSABLE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLEAN
    except KeyboardInterrupt:
        return UNUSABLE


def settings(arguments: argparse.Namespace) -> Config:
    """The configuration file with the command line over it."""
    path = None
    if not arguments.isolated:
        path = Path(arguments.config) if arguments.config else find_config(Path.cwd())
    config = load_config(path)
    given = {k: v for k, v in vars(arguments).items() if k in Config.__struct_fields__ and not _is_unset(v)}
    for name in ("extend_select", "ignore", "exclude"):
        if name in given:
            given[name] = [*getattr(config, name), *given[name]]
    if arguments.per_file_ignores:
        given["per_file_ignores"] = {**config.per_file_ignores, **_per_file(arguments.per_file_ignores)}
    return checked_config("the command line", msgspec.structs.replace(config, **given))


def _is_unset(value: object) -> bool:
    """An option that was not given. Zero is a value."""
    return value is None or value is False or value == []


def _per_file(entries: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry_text in entries:
        glob, _, codes = entry_text.rpartition(":")
        if not glob:
            raise LintConfigError(f"--per-file-ignores wants GLOB:CODES, found {entry_text!r}")
        found.setdefault(glob, []).extend(codes.split(","))
    return found


def options_of(config: Config, arguments: argparse.Namespace) -> CheckOptions:
    """Everything that a check needs. Raises: LintError for files that cannot be read."""
    selection = Selection.of(config.select, config.extend_select, config.ignore, config.per_file_ignores)
    decode = load_decoder(Path(config.tokenizer)) if config.tokenizer else None
    trace = TraceOptions(
        profile=config.profile,
        template=load_template(Path(config.chat_template)) if config.chat_template else None,
        bos_token_id=config.bos_token_id,
        thresholds=Thresholds(config.error_share, config.error_tokens, config.warning_share),
        prices=load_prices(Path(config.prices)) if config.prices else DEFAULT_PRICES,
        prefill_rate=config.prefill_rate,
        kv_tokens=config.kv_tokens,
        extra_rules=selection.enabled & OFF_BY_DEFAULT,
    )
    if decode is not None:
        trace = dataclasses.replace(trace, decode=decode.decode, count=decode.count)
    wants_repair = getattr(arguments, "fix", False) or getattr(arguments, "diff", False)
    return CheckOptions(selection, trace, config.input_format, arguments.stdin_filename, wants_repair)


def checked(arguments: argparse.Namespace, config: Config, paths: list[str]) -> Report:
    """Check paths and take away what the baseline knows."""
    sources = SourceFilter.ALL if config.no_gitignore else SourceFilter.NOT_IGNORED_BY_GIT
    report = Check(options_of(config, arguments)).run(gather(paths, config.exclude, sources))
    if config.baseline:
        report.findings = read_baseline(Path(config.baseline)).new(report.findings)
    return report


def status_of(report: Report, config: Config) -> int:
    """2 for unusable input, 1 for findings that count, 0 for clean."""
    if report.unusable:
        return UNUSABLE
    lost = sum(f.cost.tokens for f in report.findings)
    if config.max_lost_tokens is not None and lost > config.max_lost_tokens:
        return FOUND
    if config.fail_on == "never":
        return CLEAN
    worst = report.worst()
    return FOUND if worst is not None and worst >= Severity.of(config.fail_on) else CLEAN


def _check(arguments: argparse.Namespace) -> int:
    config = settings(arguments)
    report = checked(arguments, config, arguments.paths)
    if not report.files and not report.unusable:
        raise UnusableInput(", ".join(arguments.paths), "nothing to check was found")
    if arguments.diff:
        change = diffs(report.findings, unsafe=arguments.unsafe_fixes) + _repairs(report)
        _say(change)
        if not change:
            print(f"No repair for any of {len(report.findings)} findings.", file=sys.stderr)  # noqa: T201
        return status_of(report, config)
    repaired = 0
    if arguments.fix:
        repaired = _repair(report, config, arguments)
    _write(report, config, arguments)
    if repaired:
        print(f"Repaired {repaired} findings.", file=sys.stderr)  # noqa: T201
    if arguments.fix:
        print(_repairs(report), end="", file=sys.stderr)  # noqa: T201
    return status_of(report, config)


def _repair(report: Report, config: Config, arguments: argparse.Namespace) -> int:
    """Repair sources until nothing is left to be repaired: behind one finding of a line another may stand."""
    total = 0
    for _ in range(_MOST_ROUNDS):
        left, repaired = apply_fixes(report.findings, unsafe=arguments.unsafe_fixes)
        if not repaired:
            break
        total += repaired
        changed = {f.location.file for f in report.findings if f not in left}
        again = checked(arguments, config, sorted(changed))
        report.findings = [f for f in left if f.location.file not in changed] + again.findings
    return total


def _repairs(report: Report) -> str:
    lines = []
    for name, repair in report.repairs:
        rules = ", ".join(f"{rule} ×{n}" for rule, n in sorted(repair.repaired.items())) or "nothing to repair"
        lines.append(f"{name}: simulated hit rate {repair.before:.1%} before, {repair.after:.1%} after ({rules})\n")
    return "".join(lines)


def _write(report: Report, config: Config, arguments: argparse.Namespace) -> None:
    if arguments.statistics:
        text = statistics(report)
    else:
        colour = (
            sys.stdout.isatty()
            and not arguments.no_colour
            and "NO_COLOR" not in os.environ
            and not arguments.output_file
        )
        text = render(report, config.output_format, show_values=config.show_values, colour=colour)
    if arguments.output_file:
        _save(Path(arguments.output_file), text.encode("utf-8", "backslashreplace"))
    else:
        _say(text)
    for error in report.unusable:
        print(f"prompt-lint: {error}", file=sys.stderr)  # noqa: T201


def _save(path: Path, content: bytes) -> None:
    """Write a file. Raises: UnusableInput where that is not possible."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UnusableInput(str(path), f"cannot be written: {error.strerror}") from error


def _say(text: str) -> None:
    """Write to standard output; characters that a terminal's encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _rule(arguments: argparse.Namespace) -> int:
    codes = expand_codes([arguments.code])
    _say("\n".join(page(code) for code in sorted(codes)))
    return CLEAN


def _rules(arguments: argparse.Namespace) -> int:
    if arguments.output_format == "json":
        _say(
            json.dumps(
                [{"id": code, **msgspec.to_builtins(info)} for code, info in CATALOGUE.items()],
                indent=2,
                ensure_ascii=False,
            )
            + "\n"
        )
        return CLEAN
    for code, info in CATALOGUE.items():
        off = " (off by default)" if code in OFF_BY_DEFAULT else ""
        if arguments.output_format == "markdown":
            _say(f"| {code} | {info.name}{off} | {info.what} | {info.fix} |\n")
        else:
            _say(f"{code}  {info.name:<28} {info.what}{off}\n")
    return CLEAN


def _probe(arguments: argparse.Namespace) -> int:
    report = Report(findings=probe_template(Path(arguments.template)), files=1)
    config = Config(output_format=arguments.output_format or "text", show_values=arguments.show_values)
    _write(report, config, arguments)
    return status_of(report, config)


def _baseline(arguments: argparse.Namespace) -> int:
    config = settings(arguments)
    report = checked(arguments, msgspec.structs.replace(config, baseline=None), arguments.paths)
    baseline = Baseline.of(f for f in report.findings if f.rule != "PL903")
    _save(Path(arguments.output), msgspec.json.format(msgspec.json.encode(baseline), indent=1) + b"\n")
    _say(f"{sum(baseline.known.values())} findings written to {arguments.output}\n")
    return UNUSABLE if report.unusable else CLEAN


def _compare(arguments: argparse.Namespace) -> int:
    config = settings(arguments)
    before, after = (
        saved_report(Path(path)) or checked(arguments, config, [path]) for path in (arguments.before, arguments.after)
    )
    result = compare(before, after)
    _say(result.render(arguments.output_format or "text"))
    if before.unusable or after.unusable:
        return UNUSABLE
    return FOUND if result.got_worse else CLEAN


def _watch(arguments: argparse.Namespace) -> int:
    config = settings(arguments)
    return watch(
        arguments.paths,
        interval=arguments.interval,
        rounds=arguments.rounds,
        check=lambda: checked(arguments, config, arguments.paths),
        show=lambda report: _write(report, config, arguments),
    )


_COMMANDS = {
    "check": _check,
    "rule": _rule,
    "rules": _rules,
    "probe-template": _probe,
    "baseline": _baseline,
    "compare": _compare,
    "watch": _watch,
}

if __name__ == "__main__":
    sys.exit(main())
