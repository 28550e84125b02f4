"""The doctor names what is wrong, with the remedy; its exit status says whether the server can start."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import msgspec
import pytest

from sessile.server import app
from sessile.server.config import load_config
from sessile.server.doctor import software
from sessile.server.doctor.finding import Finding, Health
from sessile.server.doctor.inference import _tiers
from sessile.server.doctor.report import examine, is_broken, print_report
from sessile.server.engine.kept_calibration import Kept
from sessile.server.model.source import default_cache_dir
from sessile.server.places import listen
from sessile.sessions.cache.cost_model import Calibration


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """A configuration that is right on any machine, and a cache folder without models."""
    kernels = default_cache_dir() / "kernels"  # to build them takes long: those of the user serve
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(kernels)
    monkeypatch.setenv("SESSILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return {"data_dir": str(tmp_path / "data"), "http_port": "0", "grpc_port": "0", "device": "cpu"}


def arguments(flags: dict[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]


def topics(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.topic: finding for finding in findings}


def test_a_sound_machine_is_not_broken(flags) -> None:
    findings = examine(load_config(flags, {}))
    assert not is_broken(findings)
    found = topics(findings)
    assert {"python", "packages", "compiler", "cpu", "threads", "memory", "data folder", "device", "kernels"} <= set(
        found
    )
    assert "data_dir from --data-dir" in found["configuration"].found
    assert found["model"].health is Health.WARNING  # not in the empty cache
    assert all(finding.remedy for finding in findings if finding.health is not Health.OK)


def test_each_fault_is_found_with_its_remedy(flags, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.gguf").write_text("no model")
    with closing(listen("127.0.0.1", 0, "http")) as taken:
        wrong = flags | {
            "data_dir": str(tmp_path / "file"),
            "http_port": str(taken.getsockname()[1]),
            "kv_memory_bytes": "900TiB",
            "model": str(tmp_path / "bad.gguf"),
            "threads": "100000",
        }
        found = topics(examine(load_config(wrong, {})))
    for topic, words in (
        ("data folder", "--data-dir"),
        ("http port", "--http-port"),
        ("memory", "--kv-memory-bytes"),
        ("model", "name a model's folder"),
    ):
        assert found[topic].health is Health.BROKEN, topic
        assert words in (found[topic].remedy or "")
    assert found["threads"].health is Health.WARNING


async def test_ports_of_a_running_sessile_are_no_fault(flags, front) -> None:
    host, _, port = front.target.rpartition(":")
    found = topics(await asyncio.to_thread(examine, load_config(flags | {"host": host, "grpc_port": port}, {})))
    assert found["grpc port"].health is Health.WARNING
    assert "a Sessile server runs on" in found["grpc port"].found


def test_a_missing_package_leaves_its_checks_out(flags, monkeypatch) -> None:
    monkeypatch.setattr(software, "_NEEDED", ("sessile", "no-such-package"))
    monkeypatch.setattr("sessile.server.doctor.report.missing_packages", lambda: ["no-such-package"])
    findings = examine(load_config(flags, {}))
    assert is_broken(findings)
    broken = next(finding for finding in findings if finding.health is Health.BROKEN)
    assert "no-such-package" in broken.found
    assert "pip install 'sessile[server]'" in (broken.remedy or "")


def test_the_command_as_text_and_as_json(flags, capsys) -> None:
    assert app.main(["doctor", *arguments(flags)]) == 0
    text = capsys.readouterr().out
    assert "Nothing is broken" in text
    assert app.main(["doctor", "--json", *arguments(flags)]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert all(finding["topic"] in text for finding in findings)
    flags["data_dir"] = "/proc/nothing"
    assert app.main(["doctor", *arguments(flags)]) == 1
    assert "1 broken." in capsys.readouterr().out


def test_brackets_in_a_finding_are_text(capsys) -> None:
    print_report([Finding(topic="x", found="[red] /a[1]")], as_json=False)
    assert "[red] /a[1]" in capsys.readouterr().out


def test_models(flags, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    assert app.main(["models"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out
    assert app.main(["models", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["name"], model["kind"], model["size_bytes"]) == ("smollm2-135m", "embedded", 0)


def test_the_tiers_say_from_where_on_a_load_pays(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SESSILE_CACHE_DIR", str(tmp_path))
    assert "not measured yet" in _tiers().found
    (tmp_path / "calibration").mkdir()
    loads = {"host": (1e-4, 1e-9), "disk": (1000.0, 1.0)}
    calibration = Calibration(prefill=(0.001, 0.001, 0.0), loads=loads)
    kept = Kept(model="a model", block_size=16, block_bytes=4096, calibration=calibration)
    (tmp_path / "calibration" / "x.json").write_bytes(msgspec.json.encode(kept))
    assert _tiers().found == "with a model, loading beats computing: host from 16 tokens on, disk never"
