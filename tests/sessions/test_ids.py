"""Ids: enough of each comes from the system's random source, and nothing else could make one known beforehand."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from sessile.server.identity.api_key import Scope, new_key
from sessile.sessions.batches.answers import error_line
from sessile.sessions.batches.store import new_file_id
from sessile.sessions.ids import unguessable
from sessile.sessions.manager.views import new_session_id

NOW = 1_700_000_000.0
GENERATORS: dict[str, Callable[[], str]] = {
    "session": lambda: new_session_id(NOW),
    "file": new_file_id,
    "line of a batch": lambda: msgspec.json.decode(error_line("c", "code", "message"))["id"],
    "turn": lambda: unguessable(""),
    "response": lambda: unguessable("resp_"),
    "batch": lambda: unguessable("batch_"),
    "key": lambda: new_key("acme", (Scope.INFER,), "", NOW)[0],
}
SOURCE_BYTES = 12  # 96 bits


@pytest.mark.parametrize("name", GENERATORS)
def test_an_id_takes_96_bits_from_the_system_and_nothing_else_decides(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = GENERATORS[name]
    assert generate() != generate()
    drawn: list[int] = []

    def zeros(count: int) -> bytes:
        drawn.append(count)
        return bytes(count)

    monkeypatch.setattr(os, "urandom", zeros)
    monkeypatch.setattr(random, "_urandom", zeros)  # what ``secrets`` draws from
    assert generate() == generate(), "something besides the system's source made these differ"
    assert sum(drawn) // 2 >= SOURCE_BYTES


def test_all_that_is_drawn_stands_in_the_id() -> None:
    ids = {unguessable("x_") for _ in range(2000)}
    assert len(ids) == 2000
    assert all(re.fullmatch(r"x_[0-9a-f]{32}", one) for one in ids)
    for place in range(2, 34):
        assert len({one[place] for one in ids}) == 16, f"the digit {place} does not take all values"
    assert re.fullmatch(r"ses_[0-9a-f]{12}[0-9a-f]{32}", new_session_id(NOW))
    assert new_session_id(NOW) < new_session_id(NOW + 1)


FORKS = """
import os, random
from sessile.sessions.ids import unguessable
first = unguessable("")
for child in range(4):
    if not os.fork():
        random.seed(1)
        os.write(1, f"{unguessable('')}\\n".encode())
        os._exit(0)
for child in range(4):
    os.wait()
print(first)
"""


def test_copies_of_one_process_share_no_seed() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    ids = done.stdout.split()
    assert len(ids) == len(set(ids)) == 5
