"""Ports and the data folder: what cannot be used is told with the flag that changes it."""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import closing
from pathlib import Path

import pytest

from sessile.server.places import allow_open_files, listen, port_error, prepare_data_dir
from sessile.sessions.errors import ConfigError


def test_a_port_in_use_names_the_port_and_the_flag() -> None:
    with closing(listen("127.0.0.1", 0, "http")) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            listen("127.0.0.1", port, "http")
    assert caught.value.field == "http.port"
    assert str(port) in str(caught.value)
    assert "--http-port" in str(caught.value)
    listen("127.0.0.1", port, "http").close()


def test_a_free_port_listens() -> None:
    with closing(listen("127.0.0.1", 0, "http")) as listener, closing(socket.create_connection(listener.getsockname())):
        listener.accept()[0].close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listen(host, 0, "grpc")
    assert caught.value.field == "server.host"
    assert "--host" in str(caught.value)


def test_a_privileged_port() -> None:
    error = port_error("127.0.0.1", 80, "grpc", OSError(errno.EACCES, "denied"))
    assert error.field == "grpc.port"
    assert "--grpc-port" in str(error)


def test_the_data_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    prepare_data_dir(folder)
    prepare_data_dir(folder)
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0
    assert list(folder.iterdir()) == []


def test_a_data_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/nothing")):
        with pytest.raises(ConfigError) as caught:
            prepare_data_dir(folder)
        assert caught.value.field == "server.data_dir"
        assert "--data-dir" in str(caught.value)


def test_as_many_files_may_be_open_as_there_may_be_connections(caplog: pytest.LogCaptureFixture) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, most))
        for wanted, found in ((400, 500), (600, 600)):
            allow_open_files(wanted)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (found, most)
        assert caplog.text == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def test_files_that_the_system_does_not_let_open_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [(500, 1000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, found: limits.append(found))
    allow_open_files(9216)
    assert limits[-1] == (1000, 1000)
    assert "1000 files may be open at once, 9216 are wanted" in caplog.text
    assert "lower --http-max-connections and --grpc-max-connections" in caplog.text
