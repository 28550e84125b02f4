"""``sessile``: the entry point. Reads the command line and the configuration, then runs the command.

What a command needs is imported when it runs, so that ``sessile --help`` is quick and works without torch.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..sessions.errors import ConfigError, SessileError
from .command_line import CommandLine, parse_command_line
from .config import LogConfig, ResolvedConfig, hand_down, load_config
from .engine.engine_config import Device
from .log_lines import log_to_stderr

EXIT_FAILED = 1
EXIT_USAGE = 2
_SERVER_MODULES = ("torch", "uvloop", "uvicorn", "fastapi", "grpc", "zmq", "sqlite_utils", "tokenizers", "llguidance")
_SERVER_EXTRA = "this command needs the server's packages: pip install 'sessile[server]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 failed, 2 wrong usage or configuration."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = _APART.get(arguments[0], _configured) if arguments else _configured
    try:
        return command(arguments)
    except ConfigError as error:
        return _complain(str(error), EXIT_USAGE)
    except SessileError as error:
        return _complain(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_FAILED)


def _configured(arguments: Sequence[str]) -> int:
    """A command that takes the server's configuration."""
    line = parse_command_line(arguments)
    resolved = load_config(line.flags, os.environ, line.config_file)
    hand_down(resolved, os.environ)
    try:
        return _run(line, resolved)
    except ConfigError as error:  # what only showed when the command ran, such as a port in use
        return _complain(str(error), EXIT_FAILED)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sessile"):
            raise
        return _complain(f"{error.name} is not installed; {_SERVER_EXTRA}", EXIT_FAILED)


def _run(line: CommandLine, resolved: ResolvedConfig) -> int:
    match line.command:
        case "serve":
            return _serve(resolved)
        case "models":
            from .model_list import print_models

            print_models(as_json=line.as_json)
            return 0
        case "doctor":
            from .doctor.report import examine, is_broken, print_report

            findings = examine(resolved)
            print_report(findings, as_json=line.as_json)
            if resolved.config.engine.device is Device.CUDA and not (is_broken(findings) or line.as_json):
                from .doctor.cuda.report import main as test_gpu

                return test_gpu()
            return EXIT_FAILED if is_broken(findings) else 0
        case _:
            raise AssertionError(f"the parser knows no command {line.command}")


def _sessions(arguments: Sequence[str]) -> int:
    from .sessions_command import run_sessions, sessions_parser

    return run_sessions(sessions_parser().parse_args(list(arguments[1:])))


def _keys(arguments: Sequence[str]) -> int:
    from .keys_command import keys_parser, run_keys

    given = keys_parser().parse_args(list(arguments[1:]))
    return run_keys(given, _data_dir(given))


def _store(arguments: Sequence[str]) -> int:
    from .store_command import run_store, store_parser

    given = store_parser().parse_args(list(arguments[1:]))
    return run_store(given, _data_dir(given))


_APART = {"keys": _keys, "sessions": _sessions, "store": _store}  # commands with a command line of their own


def _data_dir(given: argparse.Namespace) -> Path:
    """The server's data folder, as flags, variables and the file say."""
    flags = {"data_dir": given.data_dir} if given.data_dir else {}
    resolved = load_config(flags, os.environ, Path(given.config) if given.config else None)
    return resolved.config.server.data_dir


def _serve(resolved: ResolvedConfig) -> int:
    for name in _SERVER_MODULES:  # torch would be missed only after the model was fetched
        if find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
    import uvloop

    from .composition import run_server

    _log_to_stderr(resolved.config.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_server(resolved.config))
    return 0


def _log_to_stderr(config: LogConfig) -> None:
    log_to_stderr(config.level)
    for noisy in ("uvicorn.error", "httpx", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def _complain(message: str, status: int) -> int:
    sys.stderr.write(f"sessile: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
