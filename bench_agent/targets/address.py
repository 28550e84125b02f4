"""A server's address as the user writes it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from ..errors import TargetError


@dataclass(frozen=True, slots=True)
class Address:
    """``url`` is without the path of OpenAI's protocol, which the driver adds; ``shown`` also without a password."""

    scheme: str
    host: str
    port: int | None
    url: str
    shown: str

    @property
    def netloc(self) -> str:
        """``HOST:PORT``."""
        return self.shown.partition("://")[2]


def parse_address(text: str) -> Address:
    """Raises TargetError for what is none."""
    parts = _split(text)
    if parts is None or parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
        raise TargetError(
            f"{text!r} is no address", field="target", remedy="write http://HOST:PORT or grpc://HOST:PORT"
        )
    if parts.query or parts.fragment:
        raise TargetError(f"{text!r} has more than an address", field="target", remedy="leave out ? and #")
    if parts.scheme == "grpc" and (parts.port is None or parts.path.strip("/")):
        raise TargetError(f"{text!r} is no address of gRPC", field="target", remedy="write grpc://HOST:PORT")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    place = parts.netloc.rpartition("@")[2]
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=parts.port,
        url=f"{parts.scheme}://{parts.netloc}{path}",
        shown=f"{parts.scheme}://{place}{path}",
    )


def _split(text: str) -> SplitResult | None:
    """None for brackets that do not close, or a port that is no number of a port."""
    try:
        parts = urlsplit(text.strip())
        _ = parts.port
    except ValueError:
        return None
    return parts
