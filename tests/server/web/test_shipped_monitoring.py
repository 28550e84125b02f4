"""The Grafana dashboard and the alert rules ask for metrics and labels that the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
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


@pytest.fixture
def promtool() -> Callable[..., None]:
    """Runs promtool, which has to be content."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool (Debian's package prometheus) is not installed")

    def run(*arguments: str) -> None:
        checked = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr

    return run


def test_promtool_loads_the_rules(promtool: Callable[..., None]) -> None:
    promtool("check", "rules", str(ALERTS))


def test_promtool_loads_what_the_dashboard_asks(promtool: Callable[..., None], tmp_path: Path) -> None:
    dashboard = json.loads((DOCS / "grafana" / "sessile.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [query.replace("$__rate_interval", "1m").replace("$instance", ".*") for query in asked]
    rules = [{"record": f"asked:{number}", "expr": query} for number, query in enumerate(asked)]
    (tmp_path / "asked.yml").write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "asked.yml"))


@pytest.mark.parametrize(
    ("alert", "series", "values", "fires_at"),
    [
        ("SessileCopiesFail", "sessile_copies_made", "1x4 0x30", "25m"),
        ("SessileBatchesStandStill", "sessile_batches_stalled", "0x5 1x20", "11m"),
        ("SessileBatchesExpire", 'sessile_batches_ended_total{status="expired"}', "0x5 1x20", "7m"),
        ("SessileConnectionsRefused", "sessile_http_connections_refused_total", "0x5 1+3x20", "12m"),
    ],
)
def test_an_alert_fires_when_it_should(
    promtool: Callable[..., None], tmp_path: Path, alert: str, series: str, values: str, fires_at: str
) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
    (rule,) = (
        rule
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == alert
    )
    labels = {**rule["labels"], **dict(re.findall(r'(\w+)="(\w+)"', series))}
    annotations = {name: text.replace("{{ $value }}", "1") for name, text in rule["annotations"].items()}
    expected = {"exp_labels": labels, "exp_annotations": annotations}
    test = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values}],
        "alert_rule_test": [
            {"eval_time": "4m", "alertname": alert, "exp_alerts": []},
            {"eval_time": fires_at, "alertname": alert, "exp_alerts": [expected]},
        ],
    }
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]})
    )
    promtool("test", "rules", str(tmp_path / "test.yml"))


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
