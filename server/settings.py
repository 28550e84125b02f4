"""Settings: each key of the configuration, reachable from the file, the environment and the flags.

Nothing here knows which keys there are: the table is read from the Structs of ``config.py``, so that a new field of a
Struct is at once a key, a variable and a flag, with its type, its bounds and its description in one place.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ..sessions.errors import ConfigError

ENVIRONMENT_PREFIX = "SESSILE_"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_CHOOSE = ("", "auto")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. ``http.port`` in the file's table ``[http]`` is ``SESSILE_HTTP_PORT`` and ``--http-port``."""

    table: str
    key: str
    name: str
    type: Any
    default: Any
    description: str

    @property
    def path(self) -> str:
        return f"{self.table}.{self.key}"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def type_name(self) -> str:
        """The kind of value, in one word or as its choices: for the help."""
        member = next(member for member in _members(self.type) if member is not type(None))
        bare = _unwrap(member)[0]
        if self.is_size:
            return "size"
        if choices := _choices(bare):
            return "|".join(choices)
        if _is_list(self.type):
            return "list"
        return {int: "int", float: "float", bool: "bool", str: "text", Path: "path"}[bare]

    @property
    def is_size(self) -> bool:
        return self.key.endswith("_bytes")

    def parse_text(self, text: str, origin: str) -> Any:
        """The value of a flag or a variable. Raises ConfigError naming ``origin``."""
        if _is_optional(self.type) and text.strip().lower() in _CHOOSE:
            return None
        if self.is_size:
            return self._convert(self._size(text, origin), text, origin, strict=True)
        raw: object = [part.strip() for part in text.split(",")] if _is_list(self.type) else text
        return self._convert(raw, text, origin, strict=False)

    def parse_value(self, value: object, origin: str) -> Any:
        """The value of a key in the file, which has a type already. Raises ConfigError naming ``origin``."""
        if self.is_size and isinstance(value, str):
            return self.parse_text(value, origin)
        return self._convert(value, value, origin, strict=True)

    def _size(self, text: str, origin: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise self._error(text, origin)
        number, unit, binary = match.groups()
        return int(Decimal(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])

    def _convert(self, raw: object, shown: object, origin: str, *, strict: bool) -> Any:
        try:
            value = msgspec.convert(raw, self.type, strict=strict, dec_hook=_decode_path)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            raise self._error(shown, origin) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(shown, origin)
        return value

    def _error(self, shown: object, origin: str) -> ConfigError:
        return ConfigError(f"{origin} is {shown!r}", field=self.path, remedy=f"it must be {self.expectation}")

    @property
    def expectation(self) -> str:
        """What a value has to be, in words."""
        if self.is_size:
            member = next(member for member in _members(self.type) if member is not type(None))
            bounds = _bounds(_unwrap(member)[1], shown_size)
            return f'a number of bytes{bounds}, such as 4096, "512MiB" or "2GB"'
        return _expectation(self.type)


def shown_size(size: int) -> str:
    """``size`` bytes in the largest binary unit that divides it."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)


def settings_of(config: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """The table of a configuration whose fields are its parts, in the order of their definition.

    A part's settings are named by its own name and the key (``http_port``), except where the part's annotation has
    ``extra={"prefix": ""}``.
    """
    hints = get_type_hints(config, include_extras=True)
    return tuple(
        setting
        for field in msgspec.structs.fields(config)
        for setting in _settings_of_part(field.name, *_unwrap(hints[field.name]))
    )


def _settings_of_part(table: str, part: type[msgspec.Struct], metas: list[msgspec.Meta]) -> list[Setting]:
    prefix = next((meta.extra["prefix"] for meta in metas if meta.extra), f"{table}_")
    hints = get_type_hints(part, include_extras=True)
    settings = []
    for field in msgspec.structs.fields(part):
        _, field_metas = _unwrap(hints[field.name])
        description = next((meta.description for meta in field_metas if meta.description), "")
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()
        settings.append(Setting(table, field.name, prefix + field.name, hints[field.name], default, description))
    return settings


def suggest(unknown: str, known: Iterable[str]) -> str | None:
    """``did you mean …?`` for the nearest known name, if one is near."""
    nearest = difflib.get_close_matches(unknown, list(known), n=1, cutoff=0.55)
    return f"did you mean {nearest[0]}?" if nearest else None


def _unwrap(hint: Any) -> tuple[Any, list[msgspec.Meta]]:
    """The bare type and the annotations around it, outermost last."""
    metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return (hint.__origin__ if metas else hint), metas


def _members(hint: Any) -> tuple[Any, ...]:
    bare = _unwrap(hint)[0]
    return get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (hint,)


def _choices(bare: Any) -> tuple[str, ...]:
    """The values of an enumeration or a Literal; empty for other types."""
    if get_origin(bare) is Literal:
        return tuple(str(choice) for choice in get_args(bare))
    if isinstance(bare, type) and issubclass(bare, enum.Enum):
        return tuple(str(member.value) for member in bare)
    return ()


def _is_optional(hint: Any) -> bool:
    return type(None) in _members(hint)


def _is_list(hint: Any) -> bool:
    return any(get_origin(_unwrap(member)[0]) in (tuple, list) for member in _members(hint))


def _decode_path(kind: type, raw: object) -> object:
    if kind is not Path or not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError(raw)
    return Path(raw).expanduser().absolute()


def _expectation(hint: Any) -> str:
    members = [member for member in _members(hint) if member is not type(None)]
    words = " or ".join(_expectation_of_one(member) for member in members)
    return words + (" (or left out)" if _is_optional(hint) else "")


def _expectation_of_one(hint: Any) -> str:
    bare, metas = _unwrap(hint)
    if choices := _choices(bare):
        return "one of " + ", ".join(choices)
    if get_origin(bare) in (tuple, list):
        return "a list of texts (in a flag or a variable: separated by commas)"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
    return names.get(bare, str(bare)) + _bounds(metas, str)


def _bounds(metas: list[msgspec.Meta], shown: Callable[[Any], str]) -> str:
    """`` from A to B``, as far as there are bounds, each through ``shown``."""
    lower = next((meta.ge for meta in metas if meta.ge is not None), None)
    upper = next((meta.le for meta in metas if meta.le is not None), None)
    above = next((meta.gt for meta in metas if meta.gt is not None), None)
    bounds = [
        "" if lower is None else f" from {shown(lower)}",
        "" if above is None else f" above {shown(above)}",
        "" if upper is None else f" to {shown(upper)}",
    ]
    return "".join(bounds)
