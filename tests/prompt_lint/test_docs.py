"""The list of rules in the docs is the catalogue; every option is documented."""

from __future__ import annotations

from pathlib import Path

from sessile.prompt_lint.config import Config
from sessile.prompt_lint.rules.catalogue import CATALOGUE

DOCS = Path(__file__).parents[2] / "docs"


def test_every_rule_is_listed() -> None:
    text = (DOCS / "lint-rules.md").read_text(encoding="utf-8")
    for code, info in CATALOGUE.items():
        assert f"| {code} | {info.name} | {info.what} | {info.fix} |" in text


def test_every_setting_is_documented() -> None:
    text = (DOCS / "lint.md").read_text(encoding="utf-8")
    for name in Config.__struct_encode_fields__:
        assert name in text
