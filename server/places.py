"""Where the server lives on its machine: the ports that it listens on and the folder that it writes."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import tempfile
from pathlib import Path

from ..sessions.errors import ConfigError

logger = logging.getLogger(__name__)


def listen(host: str, port: int, kind: str) -> socket.socket:
    """A listening socket. Raises ConfigError naming the port and its flag."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise port_error(host, port, kind, error) from error


def port_error(host: str, port: int, kind: str, error: OSError) -> ConfigError:
    """Why ``host:port`` cannot be listened on, and what to do."""
    flag = f"--{kind}-port"
    match error.errno:
        case errno.EADDRINUSE:
            return ConfigError(
                f"port {port} on {host} is in use",
                field=f"{kind}.port",
                remedy=f"stop what listens there, or give {flag} another port (0 takes a free one)",
            )
        case errno.EACCES:
            return ConfigError(
                f"port {port} may not be used by this user", field=f"{kind}.port", remedy=f"give {flag} one above 1023"
            )
        case _:
            return ConfigError(
                f"cannot listen on {host}: {error.strerror or error}",
                field="server.host",
                remedy="give --host an address of this machine",
            )


def allow_open_files(wanted: int) -> None:
    """Let this process and its children have ``wanted`` files open, connections among them, as far as the system does.

    What is missing is logged: connections would run into that limit before they run into theirs.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == resource.RLIM_INFINITY or now >= wanted:
        return
    reachable = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, most))
    if reachable < wanted:
        logger.warning(
            "%d files may be open at once, %d are wanted: raise the limit (ulimit -n, LimitNOFILE), or lower "
            "--http-max-connections and --grpc-max-connections",
            reachable,
            wanted,
        )


def prepare_data_dir(folder: Path) -> None:
    """Make the data folder and try it out. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"the data folder {folder} cannot be written: {error.strerror}",
            field="server.data_dir",
            remedy="give --data-dir a folder that this user can write",
        ) from error
