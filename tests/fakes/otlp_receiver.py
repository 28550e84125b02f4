"""What a collector of OpenTelemetry does at its door: takes spans over OTLP/HTTP and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class OtlpReceiver(ThreadingHTTPServer):
    """``requests``: the ExportTraceServiceRequests that came to ``/v1/traces``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Door)
        self.requests: list[Any] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Door(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
            ExportTraceServiceResponse,
        )

        receiver = self.server
        assert isinstance(receiver, OtlpReceiver)
        sent = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            sent = gzip.decompress(sent)
        is_right = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
        if is_right:
            receiver.requests.append(ExportTraceServiceRequest.FromString(sent))
        self.send_response(200 if is_right else 404)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    thread = threading.Thread(target=receiver.serve_forever, daemon=True)
    thread.start()
    yield receiver
    receiver.shutdown()
    receiver.server_close()
    thread.join()
