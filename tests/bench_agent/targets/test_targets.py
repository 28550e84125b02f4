from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from scripted_openai import Script, ScriptedServer

from sessile.bench_agent.driver.ask import Ask, Sampling
from sessile.bench_agent.driver.observation import Observation
from sessile.bench_agent.driver.openai_http import OpenAiDriver
from sessile.bench_agent.errors import TargetError
from sessile.bench_agent.targets import launchers
from sessile.bench_agent.targets.launchers import LAUNCHERS, ServeRequest, launcher_named
from sessile.bench_agent.targets.server_process import LaunchPlan, ServerProcess, free_port
from sessile.bench_agent.targets.target import TargetSpec, reach

ASK = Ask(index=0, text="hi", sampling=Sampling(max_tokens=1))
_SERVER = """
import http.server, sys, time
time.sleep(0.3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def request(tmp_path: Path, **more: object) -> ServeRequest:
    return ServeRequest(**({"model": "m.gguf", "flags": (), "wire": "http", "folder": tmp_path} | more))


async def test_a_server_is_started_waited_for_and_stopped(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    plan = LaunchPlan("small", (sys.executable, "-c", _SERVER, str(port)), url, url, tmp_path / "small.log")
    server = ServerProcess(plan)
    await server.start()
    assert server.start_s is not None and server.start_s >= 0.3
    assert server.pid > 0
    await server.stop()
    await server.stop()
    with pytest.raises(TargetError, match="not been started"):
        _ = server.pid


async def test_a_server_that_ends_while_starting_shows_its_last_words(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no such model')")
    plan = LaunchPlan("broken", command, "http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path / "broken.log")
    with pytest.raises(TargetError, match=r"ended with 1(.|\n)*no such model"):
        await ServerProcess(plan).start()


async def test_a_server_that_is_never_ready(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    plan = LaunchPlan("slow", command, "http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path / "slow.log", 0.2)
    with pytest.raises(TargetError, match="not ready in"):
        await ServerProcess(plan).start()


def test_missing_programs_give_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launchers, "_has_module", lambda python, module: False)
    for name, said in (
        ("llama-server", "build llama.cpp"),
        ("llama-cpp-python", "pip install"),
        ("vllm", "pip install vllm"),
    ):
        with pytest.raises(TargetError, match="not installed") as caught:
            launcher_named(name).plan(request(tmp_path))
        assert said in str(caught.value)
    with pytest.raises(TargetError, match="sessile, llama-server"):
        launcher_named("nobody")
    monkeypatch.undo()
    for name in ("sessile", "llama-cpp-python", "vllm"):
        with pytest.raises(TargetError, match="no program /nowhere/python"):
            launcher_named(name).plan(request(tmp_path, python="/nowhere/python"))


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("sessile", ("--grpc-port", "1")),
        ("sessile", ("--http-port=1",)),
        ("llama-server", ("--port", "1")),
        ("llama-server", ("-m", "x.gguf")),
        ("llama-cpp-python", ("--host=0.0.0.0",)),
        ("vllm", ("--model", "x")),
    ],
)
def test_flags_that_the_harness_sets_are_not_set_twice(name: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"is set by the harness.*--target"):
        launcher_named(name).plan(request(tmp_path, flags=flags))


async def test_a_server_that_lacks_a_package_gives_the_install_line(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import nothing_of_that_name")
    url = "http://127.0.0.1:9"
    plan = LaunchPlan("poor", command, url, url, tmp_path / "poor.log", install="pip install 'poor[server]'")
    with pytest.raises(TargetError, match=r"(?s)No module named.*pip install 'poor\[server\]'"):
        await ServerProcess(plan).start()
    missing = LaunchPlan("gone", ("/nowhere/server",), url, url, tmp_path / "gone.log", install="pip install gone")
    with pytest.raises(TargetError, match=r"cannot be started: .*pip install gone"):
        await ServerProcess(missing).start()


_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["starting", "stopping"])
async def test_cancelled_it_leaves_no_process_behind(when: str, tmp_path: Path) -> None:
    log = tmp_path / "parent.log"
    code = _PARENT if when == "starting" else "import signal; signal.signal(15, signal.SIG_IGN)\n" + _PARENT
    server = ServerProcess(
        LaunchPlan("parent", (sys.executable, "-c", code), "http://127.0.0.1:9", "http://127.0.0.1:9", log)
    )
    work = asyncio.ensure_future(server.start())
    while not (log.exists() and log.read_text().endswith("\n")):
        await asyncio.sleep(0.01)
    processes = [psutil.Process(server.pid), psutil.Process(int(log.read_text()))]
    work.cancel()
    if when == "stopping":
        await asyncio.sleep(0.01)
        work.cancel()
    await asyncio.wait((work,))
    gone, alive = psutil.wait_procs(processes, timeout=10)
    assert work.cancelled() and len(gone) == 2 and not alive


def test_commands_have_the_stated_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "_has_module", lambda python, module: True)
    for name in ("sessile", "llama-cpp-python", "vllm"):
        plan = launcher_named(name).plan(request(tmp_path, flags=("--threads", "2"), python=sys.executable))
        assert plan.command[0] == sys.executable and plan.command[-2:] == ("--threads", "2")
        assert "m.gguf" in plan.command
    grpc = launcher_named("sessile").plan(request(tmp_path, wire="grpc", model=None))
    assert grpc.address.startswith("grpc://") and grpc.ready_url.endswith("/ready") and "--model" not in grpc.command
    with pytest.raises(TargetError, match="no model of its own"):
        launcher_named("vllm").plan(request(tmp_path, model=None))
    assert {known.dialect for known in LAUNCHERS} == {"sessile", "llama-server", "llama-cpp-python", "vllm"}


async def test_a_server_is_asked_who_it_is(tmp_path: Path) -> None:
    async with ScriptedServer(Script(owned_by="sessile")) as server:
        async with reach(TargetSpec(address=server.url, server_flags=("--x",)), tmp_path) as target:
            assert (target.facts.dialect, target.facts.version, target.facts.model) == (
                "sessile",
                "7",
                "scripted-model",
            )
            assert target.facts.flags == ("--x",) and target.pid is not None
            assert target.facts.own_cache
            assert isinstance(target.driver, OpenAiDriver)
            await target.driver.conversation("s").turn(ASK, Observation())
            assert server.served[0].headers["x-sessile-tenant"].startswith("cold-bench-")
        async with reach(TargetSpec(address=server.url, own_cache=False), tmp_path) as target:
            assert not target.facts.own_cache
        async with reach(TargetSpec(address=server.url, dialect="vllm", model="other"), tmp_path) as target:
            assert (target.facts.dialect, target.facts.model) == ("vllm", "other")


@pytest.mark.parametrize(
    ("model", "recorded"),
    [("/home/somebody/m.gguf", "m.gguf"), ("folder/m.gguf", "m.gguf"), ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")],
)
async def test_a_record_does_not_say_where_a_models_file_lies(model: str, recorded: str, tmp_path: Path) -> None:
    async with (
        ScriptedServer(Script(owned_by="sessile")) as server,
        reach(TargetSpec(address=server.url, model=model), tmp_path) as target,
    ):
        assert target.facts.model == recorded


async def test_an_address_with_a_path_and_a_password(tmp_path: Path) -> None:
    """The path of the protocol is taken off, and a record does not tell the password."""
    async with ScriptedServer(Script()) as server:
        address = server.url.replace("://", "://user:secret@") + "/v1/"
        async with reach(TargetSpec(address=address), tmp_path) as target:
            await target.driver.conversation("s").turn(ASK, Observation())
            assert target.facts.address == server.url
            assert await target.is_there()
        assert server.served[0].headers["Authorization"].startswith("Basic ")
    assert not await target.is_there()


@pytest.mark.parametrize("status", [404, 401])
async def test_a_server_without_the_pages_that_tell_of_it(status: int, tmp_path: Path) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(status=status, text="nothing here")

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    async with TestServer(app) as server:
        spec = TargetSpec(address=str(server.make_url("/")))
        if status == 401:
            with pytest.raises(TargetError, match=r"wants a key.*--header"):
                async with reach(spec, tmp_path):
                    pass
            return
        async with reach(spec, tmp_path) as target:
            assert (target.facts.dialect, target.facts.model) == ("openai", None)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (TargetSpec(address="http://[::1"), "no address"),
        (TargetSpec(address="http://h:abc"), "no address"),
        (TargetSpec(address="http://h:99999"), "no address"),
        (TargetSpec(address="http://h/?key=1"), "more than an address"),
        (TargetSpec(address="grpc://h"), "grpc://HOST:PORT"),
        (TargetSpec(), "name one server"),
        (TargetSpec(address="http://127.0.0.1:9"), "answers at"),
        (TargetSpec(address="ftp://x"), "no address"),
        (TargetSpec(address="http://a", serve="vllm"), "name one server"),
    ],
)
async def test_what_cannot_be_reached(spec: TargetSpec, said: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=said):
        async with reach(spec, tmp_path):
            pass
