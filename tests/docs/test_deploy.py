"""The container file and the systemd unit agree with the server's settings, and run without root."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sessile.server.config import CONFIG_VARIABLE, all_settings

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
VARIABLES = {CONFIG_VARIABLE, *(setting.variable for setting in all_settings())}


@pytest.mark.parametrize("name", ["Containerfile", "sessile.service"])
def test_every_variable_is_a_setting(name: str) -> None:
    named = set(re.findall(r"SESSILE_[A-Z_]+", (DEPLOY / name).read_text()))
    assert named and named <= VARIABLES


def test_the_container_runs_as_a_user_and_stops_with_the_signal_that_drains() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    last_stage = text[text.rindex("FROM ") :]
    assert re.search(r"^USER 10001$", last_stage, re.MULTILINE)
    assert last_stage.index("USER 10001") < last_stage.index("CMD [")
    assert "STOPSIGNAL SIGTERM" in last_stage


def test_the_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "sessile.service"
    # The program itself is not installed here, so another stands in for it.
    unit.write_text((DEPLOY / "sessile.service").read_text().replace("/opt/sessile/bin/sessile serve", "/bin/true"))
    done = subprocess.run([analyse, "verify", str(unit)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "sessile.service" in line]
    assert not complaints
    text = unit.read_text()
    assert "DynamicUser=yes" in text and "User=root" not in text
