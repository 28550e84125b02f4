"""Faults of the world around a real server: its disk, its clock, its network. After each, the next turn is right.

The disk and the clock are a library's between the server and the kernel (``fakes/faults.c``). What "right" means: a
twin session with the same history, which was spared the fault, is given the same turn and must say the same tokens.
Faults of processes are in ``test_kills_with_tiers.py``, ``test_durability.py`` and, SIGSTOP among them, in
``tests/server/engine/test_engine_faults.py``; of Redis in ``test_shared_redis.py``; of gRPC's connections in
``tests/server/client``.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from faults import Faults
from served_llama import make_served_llama
from server_process import ServerProcess
from tcp_proxy import TcpProxy
from tiny_llama import SMALL
from waiting import wait_until

from sessile.server.client import RetryPolicy, SamplingParams, Session, SessionClient, StoreError, StoreUnavailable

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

# A pool of 85 blocks of a model whose KV is worth reading, and nothing between it and the disk: what a session returns
# to after others filled the pool is read again.
FLAGS = (
    "--dtype", "float32", "--threads", "1", "--kv-memory-bytes", "8MiB", "--host-memory-bytes", "0",
    "--disk-quota-bytes", "64MiB", "--speculation", "off", "--http-read-timeout-s", "600",
)  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
TEN_YEARS_S = 10 * 365 * 86_400


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def server(faults: Faults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = make_served_llama(tmp_path_factory.mktemp("model") / "tiny-llama", SMALL)
    data = tmp_path_factory.mktemp("data")
    with ServerProcess(data, "--model", str(model), *FLAGS, environment=faults.environment) as server:
        yield server
        assert "Traceback" not in server.tail()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[SessionClient]:
    with SessionClient(server.grpc_target, retry=RetryPolicy(max_attempts=1)) as client:
        yield client
    assert_nothing_is_held(server)


def assert_nothing_is_held(server: ServerProcess) -> None:
    """No block in use, no turn in hand, a moment after the last answer."""
    wait_until(lambda: _metric(server, 'sessile_kv_blocks{state="used"}') == 0)
    wait_until(lambda: _metric(server, 'sessile_engine_turns{state="running"}') == 0)
    wait_until(lambda: _metric(server, "sessile_http_turns_in_flight") == 0)


def _metric(server: ServerProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def twins(client: SessionClient) -> tuple[Session, Session]:
    """Two sessions with one history of a few blocks, and so with one future."""
    session = client.open(system="You count ships. " * 6)
    session.generate(messages="How many came in?", sampling=GREEDY).wait()
    return session, session.fork()


def said(session: Session, text: str) -> tuple[int, ...]:
    turn = session.generate(messages=text, sampling=GREEDY)
    turn.wait()
    return turn.token_ids


def ready(server: ServerProcess) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/ready", timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# Says which calls on a file did not fail.
CALLS = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for call, *arguments in (
    (os.write, b"x"), (os.pwrite, b"x", 0), (os.writev, [b"x"]), (os.pwritev, [b"x"], 0), (os.pwritev, [b"x"], 0, 0),
    (os.ftruncate, 0), (os.read, 1), (os.pread, 1, 0), (os.readv, [bytearray(1)]), (os.preadv, [bytearray(1)], 0),
    (os.preadv, [bytearray(1)], 0, 0), (os.fsync,), (os.fdatasync,),
):
    try:
        call(fd, *arguments)
    except OSError:
        continue
    print(call.__name__)
"""


def test_no_call_on_a_file_goes_past_the_faults(faults: Faults, tmp_path: Path) -> None:
    """``os.preadv`` is ``preadv2`` to the C library, where it has that."""
    file = tmp_path / "file"
    file.write_bytes(b"some")
    with faults.failing(tmp_path, write=errno.EIO, read=errno.EIO, sync=errno.EIO):
        done = subprocess.run(
            [sys.executable, "-c", CALLS, file],
            env={**os.environ, **faults.environment},
            capture_output=True,
            text=True,
        )
    assert (done.stdout, done.stderr) == ("", "")
    assert file.read_bytes() == b"some"


@pytest.mark.parametrize(
    "failing",
    [{"write": errno.ENOSPC}, {"write": errno.EIO}, {"sync": errno.EIO}],
    ids=["full", "writes fail", "syncs fail"],
)
def test_a_disk_that_takes_nothing(
    server: ServerProcess, client: SessionClient, faults: Faults, failing: dict[str, int]
) -> None:
    """The first to notice may lose its turn; then sessions are refused at once, stateless turns go on, reads too."""
    session, twin = twins(client)
    before = session.refresh()
    with faults.failing(server.data_dir, **failing):
        with pytest.raises(StoreUnavailable) as refused:
            said(session, "And how many left?")
        assert refused.value.retry_after_s
        computed = _metric(server, "sessile_generated_tokens_total")
        with pytest.raises(StoreUnavailable):
            said(session, "And how many left?")
        with pytest.raises(StoreUnavailable):
            client.open()
        assert _metric(server, "sessile_generated_tokens_total") == computed, "nothing was computed in vain"
        state = ready(server)
        assert (state["state"], state["ready"]) == ("degraded", True)
        assert state["persistence"]["sessions"]
        chat = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=60)
        assert chat.status_code == 200, chat.text
        assert session.refresh() == before, "what is there is read, and nothing was added to it"
        assert faults.num_failed > 0
    wait_until(lambda: not ready(server)["persistence"]["sessions"])
    assert said(session, "And how many left?") == said(twin, "And how many left?")
    assert httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=60).json()["usage"] is not None


def test_kv_that_cannot_be_read_is_computed(server: ServerProcess, client: SessionClient, faults: Faults) -> None:
    session, twin = twins(client)
    expected = said(twin, "And how many left?")
    session.suspend()
    twin.suspend()
    fill_the_pool(client)
    before = faults.num_failed
    with faults.failing(server.data_dir / "kv", read=errno.EIO):
        turn = session.generate(messages="And how many left?", sampling=GREEDY)
        turn.wait()
        assert faults.num_failed > before, "it was on the disk, and worth reading"
    assert turn.token_ids == expected
    sources = turn.finished.usage.tokens_by_source
    assert sources.disk == 0
    assert sources.computed > sources.total // 2
    while ready(server)["state"] != "ready":  # what is on the disk is asked for again after a while
        fill_the_pool(client)


def fill_the_pool(client: SessionClient) -> None:
    """Until nothing of the sessions before is left in it."""
    for number in range(6):
        client.open(system=f"{number} is another port. " * 12).generate(messages="x", sampling=GREEDY).wait()


def test_a_store_that_cannot_be_read_says_so_and_comes_back(
    server: ServerProcess, client: SessionClient, faults: Faults
) -> None:
    session, twin = twins(client)
    with faults.failing(server.data_dir / "sessions.db", read=errno.EIO):
        for _ in range(3):
            try:
                said(session, "And how many left?")  # from SQLite's own cache it may still be had
            except StoreError:  # to SQLite a page that cannot be read may look damaged
                break
        assert httpx.get(f"{server.url}/health").status_code == 200
    wait_until(lambda: not ready(server)["persistence"]["sessions"])
    session.refresh()
    twin.rollback(turn=1)
    session.rollback(turn=1)
    assert said(session, "And now?") == said(twin, "And now?")


@pytest.mark.parametrize("seconds", [TEN_YEARS_S, -TEN_YEARS_S], ids=["forwards", "backwards"])
def test_the_clock_jumps(server: ServerProcess, client: SessionClient, faults: Faults, seconds: int) -> None:
    session, twin = twins(client)
    kept = client.open(request_id="opened before the jump")
    with faults.clock_moved_by(seconds):
        assert ready(server)["state"] == "ready"
        assert said(session, "And how many left?") == said(twin, "And how many left?")
        assert client.open(request_id="opened before the jump").session_id == kept.session_id
        client.open().close()
    assert said(session, "Sure?") == said(twin, "Sure?")
    assert kept.refresh().session_id == kept.session_id


@pytest.mark.parametrize("cut_after", [200, 1500])
async def test_the_network_is_cut_in_mid_stream(server: ServerProcess, client: SessionClient, cut_after: int) -> None:
    """Over HTTP nobody takes a stream up again: the turn ends, and what it held is free."""
    proxy = TcpProxy(server.http_port)
    await proxy.start()
    proxy.cut_after = cut_after
    body = {**CHAT, "max_tokens": 400, "stream": True}
    async with httpx.AsyncClient(timeout=60) as http:
        with pytest.raises(httpx.TransportError):
            await http.post(f"http://127.0.0.1:{proxy.port}/v1/chat/completions", json=body)
    assert proxy.cuts == 1
    await proxy.stop()
    await asyncio.to_thread(assert_nothing_is_held, server)
    session, twin = await asyncio.to_thread(twins, client)
    assert await asyncio.to_thread(said, session, "So?") == await asyncio.to_thread(said, twin, "So?")


def never_reading(server: ServerProcess, body: dict[str, Any]) -> socket.socket:
    """Has sent a request and lets nothing come: the systems on both sides hold little for a connection like this."""
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.connect(("127.0.0.1", server.http_port))
    connection.sendall(head + content)
    return connection


def test_clients_that_never_read_hold_up_nobody_else(server: ServerProcess, client: SessionClient) -> None:
    """Their streams stand still with a megabyte unsent; others' turns go on, and all is free when they are gone."""
    body = {**CHAT, "max_tokens": 400, "stream": True, "logprobs": True, "top_logprobs": 20}
    session, twin = twins(client)
    made = _metric(server, "sessile_generated_tokens_total")
    stuck = [never_reading(server, body) for _ in range(3)]
    wait_until(lambda: _metric(server, "sessile_generated_tokens_total") == made + 3 * 400)
    assert said(session, "And how many left?") == said(twin, "And how many left?")
    assert _metric(server, "sessile_http_turns_in_flight") == len(stuck), "what was made is still to be sent"
    for connection in stuck:
        connection.close()
