"""Certificates for TLS in tests."""

from __future__ import annotations

from pathlib import Path

import trustme

from sessile.server.identity.auth_config import TlsConfig


class Authority:
    """A certificate authority that writes what a server and a client need."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.folder = trustme.CA(), folder
        folder.mkdir(exist_ok=True)
        self.client_ca = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.client_ca)

    @property
    def root(self) -> bytes:
        return self.ca.cert_pem.bytes()

    def issue(self) -> TlsConfig:
        issued = self.ca.issue_cert("localhost", "127.0.0.1")
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return TlsConfig(cert=cert, key=key)
