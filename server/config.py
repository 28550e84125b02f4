"""The server's configuration: defaults < TOML file < environment < flags.

Each part of the server gets its own part of this, never the whole. A key that is not known is an error that suggests
the nearest one; a value out of range is an error that says where it came from and what it must be.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..sessions.batches.config import BatchesConfig
from ..sessions.errors import ConfigError
from ..sessions.keeping import Persistence, PersistencePolicy
from .engine.engine_config import EngineConfig
from .engine.limits_config import LimitsConfig
from .identity.auth_config import AuthConfig, TlsConfig
from .observe.config import ObserveConfig
from .rpc.grpc_config import GrpcConfig
from .settings import ENVIRONMENT_PREFIX, Setting, settings_of, suggest
from .text.answer_format import TextConfig
from .text.grammar_config import GrammarConfig
from .web.http_config import HttpConfig

CONFIG_VARIABLE = "SESSILE_CONFIG"
_HANDED_DOWN = ("cache_dir", "cpu_features", "arithmetic", "log_level")
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
_Values = Iterator[tuple[Setting, str, Any]]  # setting, where it was set, its value


def default_data_dir() -> Path:
    """``$XDG_DATA_HOME/sessile``, or ``~/.local/share/sessile``."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sessile"


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/sessile``, or ``~/.cache/sessile``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sessile"


class ProcessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The server as a whole."""

    host: Annotated[str, Meta(description="address that both ports listen on")] = "127.0.0.1"
    data_dir: Annotated[Path, Meta(description="folder of the sessions")] = msgspec.field(
        default_factory=default_data_dir
    )
    cache_dir: Annotated[Path, Meta(description="folder of fetched and converted models and of built kernels")] = (
        msgspec.field(default_factory=default_cache_dir)
    )
    drain_timeout_s: Annotated[
        Seconds, Meta(description="seconds that running turns get to finish after a SIGTERM")
    ] = 30.0


class KernelsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the kernels compute."""

    cpu_features: Annotated[
        Literal["auto", "torch", "plain", "avx2", "avx512", "avx512_bf16"],
        Meta(description="instructions of the CPU kernels, at most; torch: none of our kernels"),
    ] = "auto"
    arithmetic: Annotated[
        Literal["fast", "deterministic"],
        Meta(description="on a GPU: whether the order of additions may follow the shape of the batch"),
    ] = "fast"


class ModelNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The names under which clients may ask for the model."""

    served_model_name: Annotated[
        str | None, Meta(description="name of the model in the API; the model's own by default")
    ] = None
    model_aliases: Annotated[
        tuple[str, ...], Meta(description="further names that mean the served model; any other name is an error")
    ] = ("default", "model", "sessile", "m")


class SessionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How sessions are kept."""

    persistence: Annotated[
        Literal["none", "on_suspend", "on_idle", "always"],
        Meta(description="when KV is written to disk, for sessions without a policy of their own"),
    ] = "always"
    idle_s: Annotated[Seconds, Meta(description="seconds without a turn after which a session is idle")] = 30.0

    conversations: Annotated[
        bool, Meta(description="whether conversations of clients that know no session are kept as sessions")
    ] = True

    export_key: Annotated[
        str, Meta(description="file of the key that exported sessions are signed with; by default in the data folder")
    ] = ""

    def policy(self) -> PersistencePolicy:
        """The policy of a session that has none of its own."""
        return PersistencePolicy(Persistence(self.persistence), self.idle_s)


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Logging, to the standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least level that is shown")] = (
        "info"
    )
    requests: Annotated[bool, Meta(description="a line for each HTTP request")] = False


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All parts. A part is a table of the TOML file."""

    server: Annotated[ProcessConfig, Meta(extra={"prefix": ""})] = msgspec.field(default_factory=ProcessConfig)
    engine: Annotated[EngineConfig, Meta(extra={"prefix": ""})] = msgspec.field(default_factory=EngineConfig)
    kernels: Annotated[KernelsConfig, Meta(extra={"prefix": ""})] = msgspec.field(default_factory=KernelsConfig)
    names: Annotated[ModelNames, Meta(extra={"prefix": ""})] = msgspec.field(default_factory=ModelNames)
    text: Annotated[TextConfig, Meta(extra={"prefix": ""})] = msgspec.field(default_factory=TextConfig)
    sessions: SessionsConfig = msgspec.field(default_factory=SessionsConfig)
    http: HttpConfig = msgspec.field(default_factory=HttpConfig)
    batches: BatchesConfig = msgspec.field(default_factory=BatchesConfig)
    grpc: GrpcConfig = msgspec.field(default_factory=GrpcConfig)
    grammar: GrammarConfig = msgspec.field(default_factory=GrammarConfig)
    limits: LimitsConfig = msgspec.field(default_factory=LimitsConfig)
    auth: Annotated[AuthConfig, Meta(extra={"prefix": ""})] = msgspec.field(default_factory=AuthConfig)
    tls: TlsConfig = msgspec.field(default_factory=TlsConfig)
    log: LogConfig = msgspec.field(default_factory=LogConfig)
    observe: Annotated[ObserveConfig, Meta(extra={"prefix": ""})] = msgspec.field(default_factory=ObserveConfig)

    def validate(self) -> None:
        """What no single key can see. Raises ConfigError."""
        self.engine.validate()
        if self.http.port == self.grpc.port != 0:
            raise ConfigError(
                f"HTTP and gRPC both listen on port {self.http.port}",
                field="grpc.port",
                remedy="give one of --http-port and --grpc-port another value",
            )


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A configuration and, for each name that is not at its default, where its value came from."""

    config: ServerConfig
    origins: Mapping[str, str]


def all_settings() -> tuple[Setting, ...]:
    """Every key of the configuration."""
    return settings_of(ServerConfig)


def load_config(
    flags: Mapping[str, str], environment: Mapping[str, str], config_file: Path | None = None
) -> ResolvedConfig:
    """The configuration from all sources.

    ``flags`` maps names (``http_port``) to texts. ``config_file`` None takes the variable SESSILE_CONFIG, if it is set.

    Raises:
        ConfigError: an unknown key, an unusable value or an unreadable file; ``field`` names it.
    """
    settings = all_settings()
    if config_file is None and environment.get(CONFIG_VARIABLE):
        config_file = Path(environment[CONFIG_VARIABLE])
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in (
        _from_file(config_file, settings),
        _from_environment(environment, settings),
        _from_flags(flags, settings),
    ):
        for setting, origin, value in source:
            values[setting.name] = value
            origins[setting.name] = origin
    config = _build(settings, values)
    config.validate()
    return ResolvedConfig(config, origins)


def hand_down(resolved: ResolvedConfig, environment: MutableMapping[str, str]) -> None:
    """Put what lower layers and child processes read from the environment there, wherever it was set."""
    for setting in all_settings():
        if setting.name in _HANDED_DOWN and setting.name in resolved.origins:
            value = str(getattr(getattr(resolved.config, setting.table), setting.key))
            if value in ("", "auto"):
                environment.pop(setting.variable, None)
            else:
                environment[setting.variable] = value


def _build(settings: tuple[Setting, ...], values: Mapping[str, Any]) -> ServerConfig:
    parts: dict[str, dict[str, Any]] = {}
    for setting in settings:
        if setting.name in values:
            parts.setdefault(setting.table, {})[setting.key] = values[setting.name]
    defaults = ServerConfig()
    changed = {table: msgspec.structs.replace(getattr(defaults, table), **keys) for table, keys in parts.items()}
    return msgspec.structs.replace(defaults, **changed)


def _from_flags(flags: Mapping[str, str], settings: tuple[Setting, ...]) -> _Values:
    known = {setting.name: setting for setting in settings}
    for name, text in flags.items():
        setting = known[name]
        yield setting, setting.flag, setting.parse_text(text, setting.flag)


def _from_environment(environment: Mapping[str, str], settings: tuple[Setting, ...]) -> _Values:
    known = {setting.variable: setting for setting in settings}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in known:
            raise ConfigError(
                f"unknown environment variable {variable}",
                field=variable,
                remedy=suggest(variable, (*known, CONFIG_VARIABLE)) or "`sessile serve --help` lists all settings",
            )
        setting = known[variable]
        yield setting, variable, setting.parse_text(text, variable)


def _from_file(path: Path | None, settings: tuple[Setting, ...]) -> _Values:
    if path is None:
        return
    known = {setting.path: setting for setting in settings} | {setting.name: setting for setting in settings}
    seen: set[str] = set()
    for key, value in _keys_of(_read_toml(path), {setting.table for setting in settings}):
        setting = known.get(key)
        if setting is None:
            raise ConfigError(
                f"unknown key {key} in {path}",
                field=key,
                remedy=suggest(key, known) or "`sessile serve --help` lists all settings",
            )
        if setting.name in seen:
            raise ConfigError(f"{path} sets {setting.path} twice", field=key, remedy=f"keep [{setting.table}] alone")
        seen.add(setting.name)
        yield setting, f"{key} in {path}", setting.parse_value(value, f"{key} in {path}")


def _keys_of(document: dict[str, Any], tables: set[str]) -> Iterator[tuple[str, Any]]:
    """``table.key`` for what stands in a table, the bare name for what stands above all tables."""
    for name, value in document.items():
        if isinstance(value, dict):
            if name not in tables:
                raise ConfigError(
                    f"unknown table [{name}]",
                    field=name,
                    remedy=suggest(name, tables) or f"the tables are {', '.join(sorted(tables))}",
                )
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}",
            field="config",
            remedy="give the path of a TOML file to --config or SESSILE_CONFIG",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", field="config", remedy="mend this place") from error
