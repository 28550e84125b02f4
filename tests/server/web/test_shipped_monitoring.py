"""The Grafana dashboard and the alert rules ask for metrics and labels that the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).resolve().parents[3] / "docs"
ALERTS = DOCS / "prometheus" / "alerts.yml"


def documented() -> dict[str, set[str]]:
    """Metrics of docs/metrics.md, which a test holds against ``/metrics``, with their labels."""
    found: dict[str, set[str]] = {}
    for line in (DOCS / "metrics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4 and cells[1].startswith("`sessile_"):
            for name in re.findall(r"`(sessile_\w+)`", cells[1]):
                found[name] = set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cells[3])))
                if cells[2] == "histogram":
                    found[f"{name}_bucket"] = {*found[name], "le"}
    return found


def expressions() -> list[str]:
    dashboard = json.loads((DOCS / "grafana" / "sessile.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load(ALERTS.read_text())
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return [*asked, *(variable["query"] for variable in dashboard["templating"]["list"][1:])]


@pytest.mark.parametrize("expression", expressions())
def test_it_asks_for_what_is_there(expression: str) -> None:
    known = documented()
    names = re.findall(r"sessile_\w+", expression)
    assert names
    labels: set[str] = {"instance"}
    for name in names:
        assert name in known, name
        labels |= known[name]
    used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    for grouped in re.findall(r"(?:by|without|ignoring)\s*\(([^)]*)\)", expression):
        used |= {label.strip() for label in grouped.split(",")}
    assert used <= labels


def test_promtool_loads_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian's package prometheus) is not installed")
    checked = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((DOCS / "grafana" / "sessile.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert max(x for x, _ in cells) < 24
        taken |= cells
