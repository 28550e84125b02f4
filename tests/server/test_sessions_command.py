"""``sessile sessions`` against a running front."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sessile.server import app
from sessile.server.client import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


class Command:
    """Runs the command as a user would, beside the server's loop."""

    def __init__(self, front: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        self._front = front
        self._capsys = capsys

    async def run(self, *arguments: str, tenant: str = "") -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        line = ["sessions", "--server", self._front.target, "--tenant", tenant, *arguments]
        status = await asyncio.to_thread(app.main, line)
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err

    async def json(self, *arguments: str) -> Any:
        status, out, _ = await self.run("--json", *arguments)
        assert status == 0
        return json.loads(out)


@pytest.fixture
def command(front: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(front, capsys, monkeypatch)


async def test_list_show_fork_close(front: Any, command: Command) -> None:
    assert await command.json("list") == []
    assert "no open sessions" in (await command.run("list"))[1]
    async with front.client() as client:
        session = await client.open(system="be good")
        turns = [await session.generate(messages=f"turn {index}", sampling=GREEDY).wait() for index in range(2)]
    (listed,) = await command.json("list")
    assert (listed["session_id"], listed["num_turns"]) == (session.session_id, 2)
    assert session.session_id in (await command.run("list"))[1]

    shown = await command.json("show", session.session_id)
    assert shown["session"]["system"] == "be good"
    assert [turn["usage"]["prompt_tokens"] for turn in shown["turns"]] == [turn.usage.prompt_tokens for turn in turns]
    _, table, _ = await command.run("show", session.session_id)
    last = next(line for line in table.splitlines() if line.startswith("│ 2"))
    cells = [cell.strip() for cell in last.strip("│").split("│")]
    sources = turns[1].usage.tokens_by_source
    assert (cells[3], cells[8]) == (str(sources.device), str(sources.computed))
    assert f"{session.view.num_tokens} tokens in 2 turns" in table

    fork = await command.json("fork", session.session_id, "--turn", "1")
    assert (fork["num_turns"], fork["parent_session_id"]) == (1, session.session_id)
    status, out, _ = await command.run("fork", session.session_id)
    assert status == 0
    closed = await command.json("close", fork["session_id"], out.strip())
    assert {view["state"] for view in closed} == {"closed"}
    assert len(await command.json("list")) == 1


async def test_on_a_narrow_terminal_an_id_is_whole_and_sources_still_sum(
    front: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front.client() as client:
        session = await client.open()
        usage = (await session.generate(messages="hi", sampling=GREEDY).wait()).usage
    monkeypatch.setenv("COLUMNS", "80")
    _, table, _ = await command.run("list")
    assert session.session_id in table and "…" not in table
    assert max(map(len, table.splitlines())) <= 80
    _, table, _ = await command.run("show", session.session_id)
    heading, _, row = (line for line in table.splitlines() if line.startswith(("┃", "┡", "│")))
    cells = [[cell.strip() for cell in line[1:-1].split(line[0])] for line in (heading, row)]
    shown = dict(zip(*cells, strict=True))
    assert sum(int(shown.get(source, 0)) for source in usage.tokens_by_source.__struct_fields__) == usage.prompt_tokens


async def test_a_pipe_gets_the_whole_table(front: Any, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    async with front.client() as client:
        session = await client.open()
    monkeypatch.delenv("COLUMNS")
    _, table, _ = await command.run("list")
    (row,) = (line for line in table.splitlines() if session.session_id in line)
    assert len(row.strip("│").split("│")) == 8


async def test_flags_stand_before_the_action_or_behind_it(front: Any, command: Command) -> None:
    async with front.client(tenant="b") as client:
        session = await client.open()
    status, out, _ = await command.run("list", "--json", "--tenant", "b")
    assert (status, [view["session_id"] for view in json.loads(out)]) == (0, [session.session_id])
    status, out, _ = await command.run("list", "--json")
    assert json.loads(out) == []


async def test_export_import_sign(front: Any, command: Command, tmp_path: Path) -> None:
    async with front.client() as client:
        session = await client.open()
        await session.generate(messages="hi", sampling=GREEDY).wait()
    file, other = tmp_path / "a.sessile", tmp_path / "b.sessile"
    exported = await command.json("export", session.session_id, str(file))
    assert exported["num_bytes"] > 0
    status, out, err = await command.run("import", str(file))
    assert (status, out.strip().startswith("ses_")) == (0, True)
    assert "the KV came along" in err
    imported = await command.json("import", "--without-kv", str(file))
    assert (imported["kv_tokens"], imported["session"]["num_turns"]) == (0, 1)

    status, _, err = await command.run("import", str(file), tenant="b")
    assert (status, "another tenant" in err) == (1, True)
    key = str(front.folder / "export.key")
    status, out, _ = await command.run("sign", str(file), str(other), "--key", key, "--for-tenant", "b")
    assert (status, "tenant b" in out) == (0, True)
    assert (await command.run("import", str(other), tenant="b"))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("show", "ses_none"), 1, "no open session"),
        (("close", "ses_none"), 1, "no open session"),
        (("import", "/nowhere/file"), 2, "No such file"),
        (("export", "SESSION", "/nowhere/file"), 2, "No such file"),
        (("fork", "SESSION", "--turn", "9"), 1, "no turn 9"),
        (("sign", "FILE", "FILE", "--key", "/nowhere/key"), 2, "there is no key"),
        (("--ca", "/nowhere/ca", "list"), 2, "cannot be read"),
    ],
)
async def test_errors_name_the_matter(
    front: Any, command: Command, tmp_path: Path, arguments: tuple[str, ...], status: int, says: str
) -> None:
    async with front.client() as client:
        session = await client.open()
    names = {"SESSION": session.session_id, "FILE": str(tmp_path / "file")}
    given = [names.get(argument, argument) for argument in arguments]
    ended, _, err = await command.run(*given)
    assert (ended, says in err) == (status, True), err


async def test_no_server_there(command: Command, front: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessile.server.client.retry.RetryPolicy.delay_s", lambda *_: None)
    await front.server.stop(0)
    status, _, err = await command.run("list")
    assert (status, "cannot be reached" in err) == (1, True)
