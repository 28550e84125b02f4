"""URLs whose signature or expiry moves while they name the same thing."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from .spans import Span, is_near, match_at

_LONGEST = 2000
_MARK = re.compile("://")
URL = re.compile(r"(?:https?|s3|gs|ftp|blob|wss?)://[^\s\"'<>`\])}]+", re.IGNORECASE)
SIGNING_KEY = re.compile(
    r"^(?:x-[\w-]*(?:sig|signature|date|expires|credential|token|signedheaders|algorithm)[\w-]*|"
    r"x-amz-.*|x-goog-.*|x-oss-.*|x-cos-.*|"
    r"sig|signature|sign|s|sv|se|st|sp|sr|spr|skoid|sktid|skt|ske|token|access_token|auth|authkey|"
    r"hmac|hash|h|key|policy|key-pair-id|expires?|exp|expiry|"
    r"expiration|ts|t|timestamp|time|date|nonce|download|ossaccesskeyid|awsaccesskeyid|googleaccessid|"
    r"q-sign-[\w-]*|q-signature|verify|md5|e|oe|oh|ex|is|hm)$",
    re.IGNORECASE,
)


def signed_urls_at(was: str, now: str, position: int) -> tuple[Span, Span, list[str]] | None:
    """Two URLs of one resource at the place where texts part, and the query keys that changed; None otherwise."""
    a, b = _url_at(was, position), _url_at(now, position)
    if not a or not b or a.start != b.start or a.text == b.text:
        return None
    first, second = urlsplit(a.text), urlsplit(b.text)
    if (first.scheme, first.netloc, first.path) != (second.scheme, second.netloc, second.path):
        return None
    old, new = dict(parse_qsl(first.query)), dict(parse_qsl(second.query))
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if changed and all(SIGNING_KEY.match(key) for key in changed):
        return a, b, changed
    return None


def _url_at(text: str, position: int) -> Span | None:
    """The URL that covers the place. Most texts have none near it: that is found out before the search."""
    return match_at(URL, text, position, _LONGEST) if is_near(_MARK, text, position, _LONGEST) else None
