"""Takes over certificates that changed on disk."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

import grpc

from ...sessions.errors import ConfigError
from .certificates import Certificates, Stamp

logger = logging.getLogger(__name__)

RELOAD_S = 1.0  # between looks at the files


class CertificateWatch:
    """Notices a change once. A change that cannot be used yet, such as a certificate whose key has not been written,
    is looked at again."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._taken: Stamp = certificates.stamp()

    async def run(self, context: ssl.SSLContext, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """``reload`` again and again, until cancelled."""
        while True:
            await sleep(RELOAD_S)
            await asyncio.to_thread(self.reload, context)

    def reload(self, context: ssl.SSLContext) -> bool:
        """Let new connections of ``context`` have a changed certificate; whether there was one."""
        try:
            stamp = self._certificates.stamp()
            if stamp == self._taken:
                return False
            self._certificates.load_into(context)
        except (OSError, ConfigError) as error:
            logger.warning("the changed certificate is not used: %s", error)
            return False
        self._taken = stamp
        logger.info("the certificate changed: new connections get the new one")
        return True


def grpc_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials that look for a change at each new connection. Raises OSError."""
    taken = [certificates.stamp()]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """None: what there is stays good."""
        try:
            stamp = certificates.stamp()
            if stamp == taken[0]:
                return None
            found = certificates.grpc_configuration()
        except OSError as error:
            logger.warning("the changed certificate is not used: %s", error)
            return None
        taken[0] = stamp
        return found

    return grpc.dynamic_ssl_server_credentials(
        certificates.grpc_configuration(),
        fetch,  # type: ignore[arg-type]  # its stubs do not know that None is an answer
        require_client_authentication=certificates.client_ca is not None,
    )
