"""The catalogue of rules: ids, names and the text of their pages."""

from __future__ import annotations

from importlib import resources

import msgspec


class RuleInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule's page. `modes`: t trace, c code, p template or tokenizer; `autofix`: no, trace, code, trace+code."""

    name: str
    what: str
    why: str
    example: str
    instead: str
    fix: str
    severity: str
    modes: str
    autofix: str


def _read() -> dict[str, RuleInfo]:
    text = resources.files(__package__ or "").joinpath("catalogue.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, RuleInfo])


CATALOGUE: dict[str, RuleInfo] = _read()
_SEVERITIES = {"by-loss": "by what it loses", "by-money": "by what it costs"}
OFF_BY_DEFAULT = frozenset({"PL706"})


def page(code: str) -> str:
    """A rule's page as Markdown. Raises: KeyError for an unknown id."""
    info = CATALOGUE[code]
    parts = (
        f"# {code}: {info.name}",
        f"Severity: {_SEVERITIES.get(info.severity, info.severity)}. Seen in: {_modes(info.modes)}. "
        f"Repaired by `--fix`: {info.autofix.replace('+', ' and ')}.",
        f"## What it does\n\n{info.what}",
        f"## Why it matters\n\n{info.why}",
        f"## Example\n\n```\n{info.example}\n```",
        f"## Instead\n\n```\n{info.instead}\n```\n\n{info.fix}",
    )
    return "\n\n".join(parts) + "\n"


def _modes(modes: str) -> str:
    words = {"t": "traces", "c": "code", "p": "templates and tokenizers"}
    return ", ".join(words[m] for m in modes)
