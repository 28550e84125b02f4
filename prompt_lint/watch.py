"""Looking again and again: at files, or at a running server's explained misses."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from .errors import UnusableInput
from .run import Report


def watch(
    paths: list[str], *, interval: float, rounds: int, check: Callable[[], Report], show: Callable[[Report], None]
) -> int:
    """Look every `interval` seconds, `rounds` times (0: for ever); the exit status is 0."""
    if any(path.startswith(("http://", "https://")) for path in paths):
        return _watch_server(paths, interval, rounds)
    seen: dict[str, float] = {}
    done = 0
    while True:
        now = _times(paths)
        if now != seen:
            seen = now
            show(check())
        done += 1
        if rounds and done >= rounds:
            return 0
        time.sleep(interval)


def _times(paths: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in paths:
        path = Path(name)
        files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path] if path.is_file() else []
        found.update({str(p): p.stat().st_mtime for p in files})
    return found


def _watch_server(urls: list[str], interval: float, rounds: int) -> int:
    """Follow `GET /v1/cache/misses`; only the servers that were named are asked."""
    seen: set[str] = set()
    done = 0
    while True:
        for url in urls:
            for miss in _misses(url):
                key = json.dumps(miss, sort_keys=True)
                if key not in seen:
                    seen.add(key)
                    sys.stdout.write(_line(miss) + "\n")
        sys.stdout.flush()
        done += 1
        if rounds and done >= rounds:
            return 0
        time.sleep(interval)


def _misses(url: str) -> list[dict[str, object]]:
    target = url.rstrip("/")
    target = target if target.endswith("/v1/cache/misses") else f"{target}/v1/cache/misses"
    try:
        with urllib.request.urlopen(target, timeout=10) as answer:  # noqa: S310 - http or https was checked
            document = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise UnusableInput(url, f"the server's misses cannot be read: {error}") from error
    found = document.get("misses", document.get("data", [])) if isinstance(document, dict) else document
    return [miss for miss in found if isinstance(miss, dict)] if isinstance(found, list) else []


def _line(miss: dict[str, object]) -> str:
    order = (
        "session",
        "session_id",
        "turn",
        "rule",
        "name",
        "reason",
        "lost_tokens",
        "first_divergent_token",
        "message",
    )
    shown = [f"{key}={miss[key]}" for key in order if miss.get(key) is not None]
    return " ".join(shown) or json.dumps(miss, ensure_ascii=False)
