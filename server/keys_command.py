"""``sessile keys``: create, list and revoke API keys. Works beside a running server, which takes the change over."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import msgspec
from rich.table import Table

from ..sessions.errors import ConfigError
from .folder_command import FolderCommand
from .identity.api_key import ApiKey, Scope, new_key
from .identity.key_file import KeyFile
from .terminal import output_console

_TENANT = re.compile(r"[!-~]{0,200}")


class ListedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as ``list --json`` prints it. Times are seconds since the epoch."""

    key_id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_at: float
    revoked_at: float | None


def run_keys(given: argparse.Namespace, data_dir: Path) -> int:
    """Run one of the commands on the keys in ``data_dir`` and return the exit status. Raises ConfigError."""
    keys = KeyFile(data_dir)
    match given.action:
        case "create":
            _create(keys, given, data_dir)
        case "list":
            _list(keys, data_dir, as_json=given.as_json)
        case "revoke":
            _revoke(keys, given.key_id)
    return 0


def keys_parser() -> argparse.ArgumentParser:
    """The command line behind ``sessile keys``."""
    command = FolderCommand("sessile keys", "Create, list and revoke API keys.")
    create = command.add("create", "make a key and print it, this once")
    create.add_argument("--tenant", default="", help="whose key it is; sessions and KV of tenants are apart")
    create.add_argument(
        "--scopes", default=Scope.INFER.value, metavar="LIST", help=f"of {', '.join(Scope)}; default: infer"
    )
    create.add_argument("--name", default="", help="a note for the list")
    listing = command.add("list", "list the keys, without their texts, which are not kept")
    listing.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    revoke = command.add("revoke", "make a key invalid; a running server knows within a second")
    revoke.add_argument("key_id", metavar="ID", help="as the list shows it")
    return command.parser


def _create(keys: KeyFile, given: argparse.Namespace, data_dir: Path) -> None:
    if not _TENANT.fullmatch(given.tenant):
        raise ConfigError(
            "the tenant's name is not usable", field="--tenant", remedy="use up to 200 visible ASCII characters"
        )
    text, key = new_key(given.tenant, _scopes(given.scopes), given.name, time.time())
    keys.change(lambda present: [*present, key])
    sys.stdout.write(text + "\n")
    whose = f"tenant {key.tenant}" if key.tenant else "the default tenant"
    for_what = f"{whose}, for {', '.join(key.scopes)}, at servers on {data_dir}"
    sys.stderr.write(f"key {key.key_id} of {for_what}; it is not shown again\n")


def _scopes(text: str) -> tuple[Scope, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Scope)]
    if unknown or not names:
        wrong = f"scope {unknown[0]!r} is not known" if unknown else "no scope is given"
        raise ConfigError(wrong, field="--scopes", remedy=f"the scopes are {', '.join(Scope)}")
    return tuple(dict.fromkeys(Scope(name) for name in names))


def _list(keys: KeyFile, data_dir: Path, *, as_json: bool) -> None:
    found = [ListedKey(**{field: getattr(key, field) for field in ListedKey.__struct_fields__}) for key in keys.read()]
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
        return
    if not found:
        sys.stdout.write(f"no keys in {data_dir}: its server takes anybody on this machine, and nobody else\n")
        return
    table = Table("id", "name", "tenant", "scopes", "created", "state")
    for key in found:
        state = "valid" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"
        table.add_row(key.key_id, key.name, key.tenant, ", ".join(key.scopes), _day(key.created_at), state)
    output_console().print(table)


def _revoke(keys: KeyFile, key_id: str) -> None:
    now = time.time()

    def revoked(present: list[ApiKey]) -> list[ApiKey]:
        if key_id not in {key.key_id for key in present}:
            raise ConfigError(f"there is no key {key_id}", field="ID", remedy="`sessile keys list` shows them")
        return [
            msgspec.structs.replace(key, revoked_at=key.revoked_at or now) if key.key_id == key_id else key
            for key in present
        ]

    keys.change(revoked)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
