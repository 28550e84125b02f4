"""Settings from pyproject.toml or prompt-lint.toml."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .errors import LintConfigError

Profile = Literal["sessile", "vllm", "sglang", "llama-server", "anthropic", "bedrock", "openai", "gemini"]
Output = Literal["text", "concise", "json", "jsonl", "sarif", "github", "gitlab", "junit", "html", "markdown"]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The keys of `[tool.prompt-lint]`. Command line options win over them."""

    select: list[str] | None = None
    extend_select: list[str] = []
    ignore: list[str] = []
    per_file_ignores: dict[str, list[str]] = {}
    exclude: list[str] = []
    no_gitignore: bool = False
    profile: Profile | None = None
    input_format: str | None = None
    chat_template: str | None = None
    tokenizer: str | None = None
    bos_token_id: int | None = None
    prefill_rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    kv_tokens: Annotated[int, msgspec.Meta(gt=0)] | None = None
    prices: str | None = None
    fail_on: Literal["error", "warning", "info", "never"] = "warning"
    max_lost_tokens: _Count | None = None
    error_share: _Share = 0.20
    error_tokens: _Count = 1000
    warning_share: _Share = 0.02
    show_values: bool = False
    output_format: Output = "text"
    baseline: str | None = None


def find_config(start: Path) -> Path | None:
    """The nearest prompt-lint.toml, or pyproject.toml with our table, at or above a folder."""
    for folder in (start, *start.parents):
        own = folder / "prompt-lint.toml"
        if own.is_file():
            return own
        shared = folder / "pyproject.toml"
        if shared.is_file() and b"tool.prompt-lint" in shared.read_bytes():
            return shared
    return None


def load_config(path: Path | None) -> Config:
    """Read settings; none gives the defaults. Raises: LintConfigError naming the key."""
    if path is None:
        return Config()
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LintConfigError(f"{path}: {error}") from error
    if path.name == "pyproject.toml":
        table = table.get("tool", {}).get("prompt-lint", {})
    _refuse_unknown(path, table)
    return _converted(str(path), table)


def checked_config(source: str, config: Config) -> Config:
    """The same settings. Raises: LintConfigError naming the key of a value that is out of its bounds."""
    return _converted(source, msgspec.to_builtins(config))


def _converted(source: str, table: dict[str, Any]) -> Config:
    try:
        return msgspec.convert(table, type=Config)
    except msgspec.ValidationError as error:
        raise LintConfigError(f"{source}: {error}") from error


def _refuse_unknown(path: Path, table: dict[str, Any]) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(Config)]
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise LintConfigError(f"{path}: unknown key {key!r}{hint}")
