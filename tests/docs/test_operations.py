"""docs/operations.md says what to do about every alert, and names settings that there are."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from sessile.server.config import all_settings

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")


def test_every_alert_has_its_action() -> None:
    rules = yaml.safe_load((DOCS / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    actions = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE[PAGE.index("## Alerts") :], re.MULTILINE))
    assert set(actions) == alerts
    assert all(len(action) > 20 for action in actions.values())


def test_every_flag_is_a_setting() -> None:
    others = {"--time", "--only"}  # docker's, and `sessile store restore`'s
    assert set(re.findall(r"`(?:[^`]*\s)?(--[a-z-]+)", PAGE)) - others <= {setting.flag for setting in all_settings()}
