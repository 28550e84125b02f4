"""What a connection may cost whatever is called on it, as gRPC's own options."""

from __future__ import annotations

from .grpc_config import GrpcConfig

_PINGS_TOO_SOON = 2  # are forgiven: a network may deliver what was sent in time all at once


def channel_options(bounds: GrpcConfig) -> list[tuple[str, int]]:
    """The options of a server with ``bounds``."""
    return [
        ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a lottery
        ("grpc.max_receive_message_length", bounds.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # One is where gRPC begins to refuse by chance, the other where it refuses all: here the same.
        ("grpc.max_metadata_size", bounds.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", bounds.max_metadata_bytes),
        ("grpc.max_allowed_incoming_connections", bounds.max_connections),
        ("grpc.max_concurrent_streams", bounds.max_streams),
        ("grpc.server_handshake_timeout_ms", _milliseconds(bounds.send_timeout_s)),
        ("grpc.max_connection_idle_ms", _milliseconds(bounds.idle_s)),
        ("grpc.keepalive_time_ms", _milliseconds(bounds.keepalive_s)),  # a client whose machine is gone ends its turn
        ("grpc.keepalive_timeout_ms", _milliseconds(bounds.keepalive_timeout_s)),
        ("grpc.http2.ping_timeout_ms", _milliseconds(bounds.keepalive_timeout_s)),  # of gRPC's other pings
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(bounds.ping_interval_s)),
        ("grpc.http2.max_ping_strikes", _PINGS_TOO_SOON),
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))  # 0 would mean: for ever
