"""Any text as the value of a header, which has visible ASCII alone."""

from __future__ import annotations

from urllib.parse import quote

_VISIBLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in '"%')


def header_text(text: str) -> str:
    """``text``, all but visible ASCII percent-encoded (RFC 3986), quotes and the sign itself too."""
    return quote(text, safe=_VISIBLE, errors="replace")
