"""TLS for both ports. Files that change, as certificates do every few weeks, are taken over without a restart."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from ...sessions.errors import ConfigError
from .auth_config import TlsConfig

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Certificates:
    """The configured files. ``client_ca`` None: clients need no certificate."""

    cert: Path
    key: Path
    client_ca: Path | None

    @classmethod
    def configured(cls, config: TlsConfig) -> Certificates | None:
        """None: no TLS. Raises ConfigError naming a file that cannot be used."""
        if config.cert is None or config.key is None:
            return None
        found = cls(config.cert, config.key, config.client_ca)
        found.ssl_context()
        return found

    def ssl_context(self) -> ssl.SSLContext:
        """For HTTP. Raises ConfigError naming the file that cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise _unusable("tls.client_ca", self.client_ca, error) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Give new connections of ``context`` the present certificate. Raises ConfigError."""
        for path, field in ((self.cert, "tls.cert"), (self.key, "tls.key")):
            try:
                path.read_bytes()
            except OSError as error:
                raise _unusable(field, path, error) from error
        try:
            context.load_cert_chain(self.cert, self.key)
        except ssl.SSLError as error:
            raise _unusable("tls.cert", self.cert, error) from error

    def grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        """For gRPC. Raises OSError."""
        client_ca = None if self.client_ca is None else self.client_ca.read_bytes()
        pairs = [(self.key.read_bytes(), self.cert.read_bytes())]
        return grpc.ssl_server_certificate_configuration(pairs, root_certificates=client_ca)

    def stamp(self) -> Stamp:
        """Changes when a file does. Raises OSError."""
        statuses = [path.stat() for path in (self.cert, self.key, self.client_ca) if path is not None]
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in statuses)


def _unusable(field: str, path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used: {error}", field=field, remedy="give PEM files that belong together and can be read"
    )
