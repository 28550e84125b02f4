"""A server without keys listens on this machine only."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessile.server import app
from sessile.server.identity.exposure import check_exposure, is_loopback
from sessile.server.identity.gate import Gate
from sessile.server.identity.key_file import KeyFile
from sessile.sessions.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, Gate(KeyFile(Path("/nowhere")), None, lambda: 0.0))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "no.such.host.invalid", ""])
def test_a_public_address_needs_a_key(host: str) -> None:
    if host:
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="sessile keys create") as refused:
            check_exposure(host, Gate(KeyFile(Path("/nowhere")), None, lambda: 0.0))
        assert refused.value.field == "server.host"
    check_exposure(host, Gate(KeyFile(Path("/nowhere")), "sixteen characters", lambda: 0.0))


def test_the_server_refuses_before_it_loads_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = app.main(
        ["serve", "--host", "0.0.0.0", "--data-dir", str(tmp_path), "--http-port", "0", "--grpc-port", "0"]
    )
    assert status == 1
    assert "there is no API key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--api-key", "short"], "auth.api_key"),
        (["--tls-cert", "/x.pem"], "tls.key"),
        (["--tls-key", "/x.pem"], "tls.cert"),
        (["--tls-client-ca", "/x.pem"], "tls.client_ca"),
    ],
)
def test_half_a_configuration_is_refused(
    flags: list[str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["serve", "--data-dir", str(tmp_path), "--http-port", "0", "--grpc-port", "0", *flags]) == 1
    assert field in capsys.readouterr().err
