"""Looking again and again: at files, or at a running server's explained misses."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import LintError, UnusableInput
from .run import Report


def watch(
    paths: list[str], *, interval: float, rounds: int, check: Callable[[], Report], show: Callable[[Report], None]
) -> int:
    """Look every `interval` seconds, `rounds` times (0: for ever); the exit status is 0."""
    if any(path.startswith(("http://", "https://")) for path in paths):
        return _watch_server(paths, interval, rounds)
    seen = _times(paths)
    show(check())
    for _ in _later_looks(interval, rounds):
        now = _times(paths)
        if now != seen:
            seen = now
            _say_errors(lambda: show(check()))
    return 0


def _later_looks(interval: float, rounds: int) -> Iterator[int]:
    """The numbers of the looks after the first; waits before each."""
    done = 1
    while not rounds or done < rounds:
        time.sleep(interval)
        yield done
        done += 1


def _say_errors(look: Callable[[], None]) -> None:
    """Look once more. What cannot be read now may be in the middle of being written, or a server that starts again."""
    try:
        look()
    except LintError as error:
        sys.stderr.write(f"prompt-lint: {error}\n")


def _times(paths: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in paths:
        path = Path(name)
        for file in path.rglob("*") if path.is_dir() else [path]:
            with contextlib.suppress(OSError):  # it is gone meanwhile: that is a change as well
                found.update({str(file): file.stat().st_mtime} if file.is_file() else {})
    return found


def _watch_server(urls: list[str], interval: float, rounds: int) -> int:
    """Follow `GET /v1/cache/misses`; only the servers that were named are asked."""
    seen: set[str] = set()
    for url in urls:
        _tell(url, seen)
    for _ in _later_looks(interval, rounds):
        for url in urls:
            _say_errors(functools.partial(_tell, url, seen))
    return 0


def _tell(url: str, seen: set[str]) -> None:
    """Print the misses of a server that are not among those seen, and note them there."""
    for miss in reversed(_misses(url)):  # the server lists the latest first
        key = json.dumps(miss, sort_keys=True)
        if key not in seen:
            seen.add(key)
            sys.stdout.write(_line(miss) + "\n")
    sys.stdout.flush()


def _request(target: str) -> urllib.request.Request:
    """With the key of `$SESSILE_API_KEY`, where the server wants one."""
    key = os.environ.get("SESSILE_API_KEY", "")
    return urllib.request.Request(target, headers={"Authorization": f"Bearer {key}"} if key else {})  # noqa: S310


def _misses(url: str) -> list[dict[str, object]]:
    target = url.rstrip("/")
    target = target if target.endswith("/v1/cache/misses") else f"{target}/v1/cache/misses"
    try:
        with urllib.request.urlopen(_request(target), timeout=10) as answer:  # noqa: S310 - http or https was checked
            document = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise UnusableInput(url, f"the server's misses cannot be read: {error}") from error
    found = document.get("misses", document.get("data", [])) if isinstance(document, dict) else document
    return [miss for miss in found if isinstance(miss, dict)] if isinstance(found, list) else []


def _line(miss: dict[str, object]) -> str:
    """One miss for people: whose it was, the rule, what it cost, where, why, what to do."""
    session, turn = miss.get("session") or miss.get("session_id"), miss.get("turn_id") or miss.get("turn")
    who = " ".join(f"{word} {value}" for word, value in (("session", session), ("turn", turn)) if value)
    what = f"{miss.get('rule', '?')} {miss.get('name', '')}".strip()
    cost = f"{miss['lost_tokens']} tokens lost" if "lost_tokens" in miss else ""
    first = miss.get("first_divergent_token")
    at = f"from token {first}" if first is not None else ""
    path = f"at {miss['path']}" if miss.get("path") else ""
    why = [str(miss[key]) for key in ("explanation", "message", "reason", "remedy") if miss.get(key)]
    return f"{who or 'a turn'}: {' '.join(part for part in (what, cost, at, path) if part)}: {'; '.join(why)}"
