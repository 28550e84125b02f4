"""`prompt-lint watch URL` against what the server answers to `GET /v1/cache/misses`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from sessile.prompt_lint.cli import main
from sessile.server.web.cache_answers import MissList

MISS = {
    "session": "s1",
    "turn_id": "t7",
    "rule": "PL101",
    "name": "volatile-timestamp",
    "explanation": "a clock value changes",
    "remedy": "Move it to the newest turn.",
    "lost_tokens": 812,
    "first_divergent_token": 40,
    "path": "messages[0].content",
}


class Misses(BaseHTTPRequestHandler):
    """Answers as the server does, and keeps the keys it was given."""

    keys: list[str | None] = []  # noqa: RUF012 - of one test at a time

    def do_GET(self) -> None:
        found = MissList(
            misses=[{**MISS, "turn_id": "t9"}, MISS], by_rule={"PL101": 2}, lost_tokens_by_kind={}, not_explained={}
        )
        self.keys.append(self.headers.get("Authorization"))
        self.send_response(200 if self.path == "/v1/cache/misses" else 404)
        self.end_headers()
        self.wfile.write(msgspec.json.encode(found))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Misses)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_misses_are_told_once_the_oldest_first(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSILE_API_KEY", "k1")
    assert main(["watch", url, "--rounds", "2", "--interval", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["session s1 turn t7", "session s1 turn t9"]
    rest = (
        "PL101 volatile-timestamp 812 tokens lost from token 40 at messages[0].content: a clock value changes; Move it"
    )
    assert rest in lines[0]
    assert set(Misses.keys) == {"Bearer k1"}


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "http://127.0.0.1:9", "--rounds", "1"]) == 2
    assert "the server's misses cannot be read" in capsys.readouterr().err
