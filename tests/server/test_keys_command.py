"""``sessile keys``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessile.server import app
from sessile.server.identity.gate import Gate
from sessile.server.identity.key_file import KeyFile
from sessile.sessions.errors import Unauthenticated


def run(data_dir: Path, *arguments: str) -> int:
    return app.main(["keys", "--data-dir", str(data_dir), *arguments])


def test_create_list_revoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "create", "--tenant", "acme", "--scopes", "infer, metrics", "--name", "ci") == 0
    printed = capsys.readouterr()
    text = printed.out.strip()
    assert "acme" in printed.err and text not in printed.err
    assert str(tmp_path) in printed.err  # a key in another server's folder opens nothing

    assert run(tmp_path, "list", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["tenant"], listed["scopes"], listed["name"]) == ("acme", ["infer", "metrics"], "ci")
    assert listed["revoked_at"] is None and "digest" not in listed

    gate = Gate(KeyFile(tmp_path), None, lambda: 0.0)
    assert gate.identify(None, text).key_id == listed["key_id"]

    assert run(tmp_path, "revoke", listed["key_id"]) == 0
    with pytest.raises(Unauthenticated):
        Gate(KeyFile(tmp_path), None, lambda: 0.0).identify(None, text)
    assert run(tmp_path, "list") == 0
    assert "revoked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "--scopes", "infer,root"], "'root' is not known (the scopes are infer, admin, metrics)"),
        (["create", "--scopes", ","], "no scope"),
        (["create", "--tenant", "a b"], "tenant's name"),
        (["revoke", "123"], "there is no key 123"),
    ],
)
def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert run(tmp_path, *arguments) == 2
    assert words in capsys.readouterr().err
    assert not KeyFile(tmp_path).read()


def test_an_empty_list_says_what_that_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "list") == 0
    out = capsys.readouterr().out
    assert "anybody on this machine" in out and str(tmp_path) in out


def test_the_folder_may_stand_before_the_action_and_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (["--data-dir", str(tmp_path), "create"], ["create", "--data-dir", str(tmp_path)]):
        assert app.main(["keys", *line]) == 0
    assert len(KeyFile(tmp_path).read()) == 2


def test_many_at_once_lose_none(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        assert all(status == 0 for status in pool.map(lambda n: run(tmp_path, "create", "--name", str(n)), range(24)))
    assert {key.name for key in KeyFile(tmp_path).read()} == {str(n) for n in range(24)}
