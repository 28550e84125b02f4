"""The gRPC server: the session API, health and reflection on one port."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ...sessions.errors import ConfigError
from ...sessions.manager.service import Sessions
from ..address import address
from ..identity.certificates import Certificates
from ..identity.gate import Gate
from ..identity.reload import grpc_credentials
from ..proto import session_pb2 as pb
from ..proto.session_pb2_grpc import add_SessionServiceServicer_to_server
from ..readiness import Readiness
from .errors import ErrorInterceptor
from .grpc_config import GrpcConfig
from .session_service import SessionService
from .transport_bounds import channel_options

SERVICE = pb.DESCRIPTOR.services_by_name["SessionService"].full_name


class RpcServer:
    """Listens from ``start`` to ``stop``. Its health is NOT_SERVING until ``report`` says otherwise.

    ``certificates`` None: no TLS. What exceeds a bound of ``config`` is refused before it is read.
    """

    def __init__(
        self,
        sessions: Sessions,
        gate: Gate,
        config: GrpcConfig,
        *,
        host: str = "127.0.0.1",
        certificates: Certificates | None = None,
    ) -> None:
        self._address = address(host, config.port)
        self._certificates = certificates
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing in its stubs
        self._server = grpc.aio.server(
            interceptors=[ErrorInterceptor(gate, config.send_timeout_s)], options=channel_options(config)
        )
        service = SessionService(sessions, config.read_timeout_s)
        add_SessionServiceServicer_to_server(service, self._server)  # type: ignore[no-untyped-call,unused-ignore]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> int:
        """Bind and listen; returns the port.

        Raises:
            ConfigError: the port cannot be had.
        """
        try:
            if self._certificates is None:
                port = self._server.add_insecure_port(self._address)
            else:
                port = self._server.add_secure_port(self._address, grpc_credentials(self._certificates))
        except RuntimeError as error:
            raise ConfigError(
                f"the gRPC server cannot listen on {self._address}: the port is in use or not permitted",
                field="grpc.port",
                remedy="stop what uses it, or choose another with --grpc-port",
            ) from error
        await self._set(turns=False, changes=False)
        await self._server.start()
        return port

    async def report(self, readiness: Readiness) -> None:
        """Tell health checks how things stand: the server serves while it takes turns, this service while what they
        change can be kept, too."""
        await self._set(turns=readiness.takes_turns, changes=readiness.takes_changes)

    async def _set(self, *, turns: bool, changes: bool) -> None:
        for name, serves in (("", turns), (SERVICE, changes)):
            status = health_pb2.HealthCheckResponse.SERVING if serves else health_pb2.HealthCheckResponse.NOT_SERVING
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give the running ones ``grace_s`` seconds, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
