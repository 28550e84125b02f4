"""Telemetry and billing lines that were sent as prompt text."""

from __future__ import annotations

import re

_PAIRS = re.compile(r"^\s*<?([\w.-]{3,60}):\s*((?:[\w.-]+=[^;,&\s]*\s*[;,&]\s*)+(?:[\w.-]+=[^;,&\s]*)?[;,]?)\s*>?$")
_HEADER_NAME = re.compile(
    r"^\s*((?:x|cf|cdn|sec|proxy|grpc|b3|uber|datadog|dd|sentry|anthropic|openai|helicone|portkey|"
    r"langfuse|langsmith|aws|amzn|goog|azure|ms)-[\w-]+"
    r"|traceparent|tracestate|baggage|user-agent|via|forwarded|authorization|idempotency-key|"
    r"request-id|correlation-id|trace-id|session-id):\s*(\S.*)$",
    re.IGNORECASE,
)


def header_line(line: str) -> tuple[str, str] | None:
    """(name, value) when a line has the form of a transport header, else None."""
    match = _PAIRS.match(line) or _HEADER_NAME.match(line)
    return (match.group(1).lower(), match.group(2)) if match else None
