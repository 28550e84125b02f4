"""``sessile sessions``: look at the sessions of a running server, fork, export, import and close them, over gRPC."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import msgspec

from ..sessions.errors import ConfigError
from .client import Imported, Session, SessionClient, SessionView, TurnSummary
from .client.asynchronous import DEFAULT_TARGET
from .terminal import fitted_table, output_console

_SOURCES = ("device", "host", "disk", "shared", "in_flight", "computed")
_ID = "as `sessile sessions list` shows it"


class ShownSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session and its turns as ``show --json`` prints them."""

    session: SessionView
    turns: tuple[TurnSummary, ...]


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What ``export --json`` prints."""

    session_id: str
    file: str
    num_bytes: int


def run_sessions(given: argparse.Namespace) -> int:
    """Run one of the commands and return the exit status. Raises SessileError."""
    if given.action == "sign":
        _sign(given)
        return 0
    actions: dict[str, Callable[[SessionClient, argparse.Namespace], None]] = {
        "list": _list,
        "show": _show,
        "fork": _fork,
        "export": _export,
        "import": _import,
        "close": _close,
    }
    with _connected(given) as client:
        actions[given.action](client, given)
    return 0


def sessions_parser() -> argparse.ArgumentParser:
    """The command line behind ``sessile sessions``. How to reach the server stands before the action or behind it."""
    parser = argparse.ArgumentParser(
        prog="sessile sessions",
        description="Look at the sessions of a running server, and move them.",
        parents=[_connection_flags()],
    )
    parser.set_defaults(server=DEFAULT_TARGET, tenant="", api_key=None, ca=None, as_json=False)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=f"{text}.", parents=[_connection_flags()])

    add("list", "open sessions, oldest first")
    show = add("show", "one session: its turns, where their tokens came from, what was missed")
    show.add_argument("session_id", metavar="ID", help=_ID)
    fork = add("fork", "another session on the same log, or on a beginning of it")
    fork.add_argument("session_id", metavar="ID", help=_ID)
    point = fork.add_mutually_exclusive_group()
    point.add_argument("--turn", type=int, metavar="N", help="just after this turn's answer")
    point.add_argument("--token", type=int, metavar="N", help="after so many tokens")
    export = add("export", "write a session to a file")
    export.add_argument("session_id", metavar="ID", help=_ID)
    export.add_argument("file", metavar="FILE", type=Path, help="where to write it")
    export.add_argument("--without-kv", action="store_true", help="its log alone: a small file")
    importing = add("import", "make a session from a file")
    importing.add_argument("file", metavar="FILE", type=Path, help="what `export` wrote")
    importing.add_argument("--without-kv", action="store_true", help="do not use the file's KV")
    close = add("close", "close sessions; they are not found afterwards")
    close.add_argument("session_ids", metavar="ID", nargs="+", help=_ID)
    _add_sign(actions)
    return parser


def _connection_flags() -> argparse.ArgumentParser:
    """Flags without defaults, so that what stands before the action is not undone by what is left out behind it."""
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    flags.add_argument("--server", metavar="HOST:PORT", help=f"its gRPC (default: {DEFAULT_TARGET})")
    flags.add_argument("--tenant", help="whose sessions; the default tenant's if left out")
    flags.add_argument("--api-key", metavar="KEY", help="where the server wants one (variable: SESSILE_API_KEY)")
    flags.add_argument("--ca", metavar="FILE", help="use TLS, and trust this certificate authority")
    flags.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    return flags


def _add_sign(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "sign an exported file for another server, or for another tenant"
    sign = actions.add_parser("sign", help=text, description=f"{text}. Needs no server.")
    sign.add_argument("file", metavar="FILE", type=Path, help="what `export` wrote")
    sign.add_argument("target", metavar="TARGET", type=Path, help="where to write it; FILE itself is possible")
    sign.add_argument(
        "--key", metavar="KEYFILE", type=Path, required=True, help="export.key of the server that is to take it"
    )
    sign.add_argument("--for-tenant", metavar="TENANT", help="bind it to this tenant; left out: as it is")


@contextmanager
def _connected(given: argparse.Namespace) -> Iterator[SessionClient]:
    credentials = None
    if given.ca is not None:
        try:
            credentials = grpc.ssl_channel_credentials(Path(given.ca).read_bytes())
        except OSError as error:
            raise ConfigError(f"{given.ca} cannot be read: {error.strerror}", field="--ca") from error
    with SessionClient(given.server, tenant=given.tenant, credentials=credentials, api_key=given.api_key) as client:
        yield client


def _list(client: SessionClient, given: argparse.Namespace) -> None:
    found = client.sessions()
    if given.as_json:
        _print_json(found)
        return
    if not found:
        sys.stdout.write("no open sessions\n")
        return
    columns = {
        "session": [view.session_id for view in found],
        "model": [view.model for view in found],
        "turns": [str(view.num_turns) for view in found],
        "tokens": [str(view.num_tokens) for view in found],
        "version": [str(view.version) for view in found],
        "state": [_state(view) for view in found],
        "persistence": [view.persistence.when.value for view in found],
        "changed": [_moment(view.updated_at) for view in found],
    }
    console = output_console()
    console.print(fitted_table(console, columns, ("model", "persistence", "version", "changed", "state", "tokens")))


def _show(client: SessionClient, given: argparse.Namespace) -> None:
    session = client.session(given.session_id)
    shown = ShownSession(session=session.view, turns=session.turns())
    if given.as_json:
        _print_json(shown)
        return
    console, view = output_console(), shown.session
    console.print(
        f"{view.session_id} · {view.model} · version {view.version} · {_state(view)} · {view.num_tokens} tokens in "
        f"{view.num_turns} turn{'' if view.num_turns == 1 else 's'} · since {_moment(view.created_at)}",
        highlight=False,
    )
    if shown.turns:
        columns = _turns(shown.turns)
        nothing = [source for source in _SOURCES if set(columns[source]) == {"0"}]
        console.print(fitted_table(console, columns, (*nothing, "at", "ended", "seconds", "missed")))
    for turn in shown.turns:
        if turn.miss is not None:
            console.print(f"turn {turn.turn}: {turn.miss.rule} {turn.miss.explanation}", highlight=False)


def _turns(turns: tuple[TurnSummary, ...]) -> dict[str, list[str]]:
    """The columns of a line for each turn: its tokens, and where its prompt's tokens came from."""
    rows = [_turn(turn) for turn in turns]
    return {heading: [row[heading] for row in rows] for heading in rows[0]}


def _turn(turn: TurnSummary) -> dict[str, str]:
    row = {"turn": str(turn.turn), "in": str(turn.input_tokens), "out": str(turn.output_tokens)}
    usage = turn.usage
    if usage is None:
        row |= dict.fromkeys((*_SOURCES, "missed", "seconds"), "?")
    else:
        row |= {source: str(getattr(usage.tokens_by_source, source)) for source in _SOURCES}
        row["missed"] = str(usage.missed.total)
        row["seconds"] = f"{usage.queue_s + usage.load_s + usage.prefill_s + usage.decode_s:.2f}"
    row["ended"] = "?" if turn.finish_reason is None else turn.finish_reason.value
    row["at"] = "?" if turn.finished_at is None else _moment(turn.finished_at)
    return row


def _fork(client: SessionClient, given: argparse.Namespace) -> None:
    _print_session(client.session(given.session_id).fork(turn=given.turn, token=given.token), given)


def _export(client: SessionClient, given: argparse.Namespace) -> None:
    with _file_errors(given.file):
        size = client.session(given.session_id).export_to(given.file, without_kv=given.without_kv)
    exported = ExportedFile(session_id=given.session_id, file=str(given.file), num_bytes=size)
    if given.as_json:
        _print_json(exported)
    else:
        sys.stdout.write(f"{size} bytes in {given.file}\n")


def _import(client: SessionClient, given: argparse.Namespace) -> None:
    with _file_errors(given.file):
        _, imported = client.import_session(given.file, without_kv=given.without_kv)
    if given.as_json:
        _print_json(imported)
        return
    sys.stdout.write(f"{imported.session.session_id}\n")
    sys.stderr.write(f"{_kv(imported)}\n")


def _kv(imported: Imported) -> str:
    if imported.kv_refused:
        return f"its KV is computed again when it is needed: {imported.kv_refused}"
    return f"{imported.session.num_tokens} tokens, of {imported.kv_tokens} the KV came along"


def _close(client: SessionClient, given: argparse.Namespace) -> None:
    closed = []
    for session_id in given.session_ids:
        session = client.session(session_id)
        session.close()
        closed.append(session.view)
    if given.as_json:
        _print_json(closed)
    else:
        sys.stdout.writelines(f"{view.session_id} is closed\n" for view in closed)


def _sign(given: argparse.Namespace) -> None:
    from ..sessions.export import load_key, resign

    if not given.key.exists():
        raise ConfigError(
            f"there is no key {given.key}",
            field="--key",
            remedy="a server makes export.key in its data folder with its first export or import",
        )
    with _file_errors(given.file):
        header = resign(given.file, given.target, load_key(given.key), given.for_tenant)
    whose = f"tenant {header.tenant}" if header.tenant else "the default tenant"
    sys.stdout.write(f"{given.target} is signed for {whose}\n")


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = error.filename or path
        raise ConfigError(f"{name} cannot be used: {error.strerror}", field="FILE") from error


def _print_session(session: Session, given: argparse.Namespace) -> None:
    if given.as_json:
        _print_json(session.view)
    else:
        sys.stdout.write(f"{session.session_id}\n")


def _print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def _state(view: SessionView) -> str:
    if view.busy:
        return "busy"
    return "suspended" if view.suspended else view.state.value


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
