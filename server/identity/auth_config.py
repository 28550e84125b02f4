"""Keys and certificates, as configured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ...sessions.errors import ConfigError


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may call, beside the keys that ``sessile keys`` keeps."""

    api_key: Annotated[
        str | None,
        Meta(description="a key with all scopes, at least 16 characters; better in the variable than in a flag"),
    ] = None

    def validate(self) -> None:
        """Raises ConfigError."""
        if self.api_key is not None and len(self.api_key) < 16:
            raise ConfigError(
                "auth.api_key is too short", field="auth.api_key", remedy="use 16 characters or more, random ones"
            )


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Certificates of both ports, read again when they change."""

    cert: Annotated[Path | None, Meta(description="PEM file of the server's certificate chain; turns TLS on")] = None
    key: Annotated[Path | None, Meta(description="PEM file of its private key")] = None
    client_ca: Annotated[
        Path | None, Meta(description="PEM file; clients must have a certificate that these authorities signed")
    ] = None

    def validate(self) -> None:
        """Raises ConfigError."""
        if (self.cert is None) != (self.key is None):
            missing = "tls.key" if self.key is None else "tls.cert"
            raise ConfigError(f"{missing} is missing", field=missing, remedy="give both --tls-cert and --tls-key")
        if self.client_ca is not None and self.cert is None:
            raise ConfigError(
                "tls.client_ca needs a certificate", field="tls.client_ca", remedy="give --tls-cert, --tls-key"
            )
