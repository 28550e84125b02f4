"""Rendering a request through a chat template: what is really cached."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import UnusableInput
from .request import Json, Request

_LARGEST, _LARGEST_POWER = 1 << 24, 64
_DEFAULT_CLOCK = 1_767_225_600.0  # 2026-01-01T00:00:00Z: a fixed clock where a request has no time


_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json", "text.json")


Writing = Callable[[list[Json], list[Json]], list[Json]]  # messages and tools to messages


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which bounds ranges, with a bound for texts that are repeated."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Raises: TemplateError for a product that would fill the memory."""
        size = max((len(side) for side in (left, right) if isinstance(side, str | list)), default=0)
        times = max((side for side in (left, right) if isinstance(side, int)), default=0)
        if size * times > _LARGEST or (operator == "**" and times > _LARGEST_POWER):
            raise TemplateError(f"the product of a '{operator}' is too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks what the model writes, for training; it prints what is in it."""

    tags = {"generation"}  # noqa: RUF012 - as in the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A chat template in the dialect that inference servers use, in a sandbox.

    ``writing``: how the server writes tools and calls into the messages, where it does not leave that to the template.
    """

    def __init__(self, source: str, file: str = "<template>", writing: Writing | None = None) -> None:
        self._writing = writing
        trim = _is_laid_out(source)
        environment = _Sandbox(
            trim_blocks=trim, lstrip_blocks=trim, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        self.source = source
        self.file = file
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise UnusableInput(file, f"not a chat template: {error}", getattr(error, "lineno", None)) from error

    def render(
        self, body: Json, *, generation_prompt: bool, clock: float | None = None, with_tools: bool = True, **extra: Any
    ) -> str:
        """The prompt of a request body. `clock` is what the template sees as now, in seconds.

        Raises: UnusableInput when the template refuses the messages.
        """
        variables: Json = {
            "messages": [_readable(m) for m in body.get("messages", [])],
            "tools": (body.get("tools") or None) if with_tools else None,
            "add_generation_prompt": generation_prompt,
            "strftime_now": _clock(clock if clock is not None else _DEFAULT_CLOCK),
            "bos_token": "<s>",
            "eos_token": "</s>",
            **(body.get("chat_template_kwargs") or {}),
            **extra,
        }
        try:
            if self._writing is not None:
                variables["messages"] = self._writing(variables["messages"], variables["tools"] or [])
            return self._template.render(variables)
        except Exception as error:  # a template is a program of somebody else
            raise UnusableInput(self.file, f"the template cannot render a request: {error}") from error

    def of_request(self, request: Request, *, generation_prompt: bool, with_tools: bool = True) -> str:
        """The prompt of a recorded request, at its own time."""
        return self.render(
            request.body, generation_prompt=generation_prompt, clock=request.timestamp, with_tools=with_tools
        )


def _is_laid_out(source: str) -> bool:
    """Servers trim the newline after a block tag, so templates are laid out over lines.

    In a template written in one line the few newlines are text, and a server that does not trim prints them:
    they are kept.
    """
    tags = source.count("%}")
    return tags > 0 and (source.count("%}\n") + source.count("-%}")) >= 0.25 * tags


def _readable(message: Any) -> Any:
    return dict(message) if isinstance(message, dict) else message


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    return "" if isinstance(value, Undefined) else json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _clock(now: float) -> Callable[[str], str]:
    moment = datetime.datetime.fromtimestamp(now, tz=datetime.UTC)
    return lambda fmt: moment.strftime(fmt)


def load_template(path: Path) -> ChatTemplate:
    """Read a template from a Jinja file, a tokenizer_config.json, a model's folder, or a hub id on this machine.

    Raises: UnusableInput when there is none.
    """
    if path.is_dir():
        for name in _TEMPLATE_FILES:
            if (path / name).exists():
                return load_template(path / name)
        raise UnusableInput(str(path), "no chat template in this folder")
    if not path.exists():
        return load_template(_downloaded(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableInput(str(path), f"cannot be read: {error}") from error
    if path.suffix == ".json":
        text = _template_in_json(path, text)
    return ChatTemplate(text, str(path))


def _downloaded(name: Path) -> Path:
    """The folder of a hub id in the hub's own cache. Raises: UnusableInput where it is not; nothing is fetched."""
    parts = str(name).split("/")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = hub / f"models--{'--'.join(parts)}" / "snapshots"
    found = [f for f in sorted(snapshots.glob("*")) if any((f / t).exists() for t in _TEMPLATE_FILES)]
    if found:
        return found[-1]
    looked = f", and no model of this name in {hub}" if len(parts) == 2 else ""
    remedy = "give its chat_template.jinja or tokenizer_config.json; prompt-lint fetches nothing"
    raise UnusableInput(str(name), f"no such file or folder{looked}: {remedy}")


def _template_in_json(path: Path, text: str) -> str:
    try:
        found = json.loads(text).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise UnusableInput(str(path), f"not JSON: {error}") from error
    if isinstance(found, list):
        named = (t for t in found if isinstance(t, dict) and t.get("name") == "default")
        found = next((t.get("template") for t in named), None)
    if not isinstance(found, str):
        raise UnusableInput(str(path), "no chat_template in this file")
    return found
