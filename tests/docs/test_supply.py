"""The bill of materials and the audit: what they say, and that an answer not given is not taken for a good one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("sessile_audit", str(ROOT / ".ci" / "audit"))
    spec = importlib.util.spec_from_loader("sessile_audit", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def report(**package: Any) -> dict[str, Any]:
    return {"dependencies": [{"name": "p", "version": "1", **package}]}


VULNERABLE = report(vulns=[{"id": "PYSEC-1", "aliases": ["CVE-2"], "fix_versions": ["2"]}])


def test_a_service_that_knows_nothing_is_none(audit: ModuleType) -> None:
    assert not audit.knows_advisories(None)
    assert not audit.knows_advisories(report(vulns=[]))
    assert not audit.knows_advisories(report(skip_reason="not found"))
    assert audit.knows_advisories(VULNERABLE)


def test_what_is_known_is_explained_or_said(audit: ModuleType) -> None:
    assert audit.unexplained(report(vulns=[]), "") == []
    assert audit.unexplained(VULNERABLE, "") == ["p 1: PYSEC-1, repaired in 2"]
    assert audit.unexplained(VULNERABLE, "CVE-2 does not touch us") == []
    assert "not judged" in audit.unexplained(report(skip_reason="not found"), "")[0]
    own = {"dependencies": [{"name": "sessile", "skip_reason": "not on PyPI"}]}
    assert audit.unexplained(own, "") == []


def test_the_bill_of_materials_names_what_the_server_needs(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py", reason="cyclonedx-bom is not installed (make sbom)")
    target = tmp_path / "sbom.json"
    command = ["cyclonedx_py", "environment", sys.executable, "--pyproject", "pyproject.toml"]
    options = ["--no-validate", "--output-reproducible", "--of", "JSON", "-o", str(target)]
    subprocess.run([sys.executable, "-m", *command, *options], cwd=ROOT, check=True, capture_output=True)
    found = json.loads(target.read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "sessile"
    names = {component["name"].lower(): component["version"] for component in found["components"]}
    assert {"torch", "grpcio", "protobuf", "fastapi", "tokenizers", "safetensors", "msgspec"} <= set(names)


def test_the_tools_are_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()
    }
    assert {"atheris", "pip-audit", "cyclonedx-bom"} <= pinned
