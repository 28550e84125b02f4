"""Two servers over one Redis, through LMCache: one serves what the other computed, and both go on without it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from redis_process import RedisProcess
from server_process import ServerProcess

from sessile.server.client import AsyncSessionClient, RetryPolicy, SamplingParams, TurnFinished

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("lmcache") is None, reason="LMCache is not installed (make setup does)"),
    pytest.mark.skipif(find_spec("glide_sync") is None, reason="valkey-glide-sync is not installed (make setup does)"),
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no redis-server on this machine"),
]

PATIENT = RetryPolicy(max_attempts=100, longest_delay_s=0.5)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3)
MEMORY = ("--kv-memory-bytes", "256MiB", "--host-memory-bytes", "0", "--disk-quota-bytes", "0")


def system(number: int) -> str:
    return f"You are clerk {number}. " + " ".join(
        f"Rule {i}: form {i * number % 89} goes to desk {i}." for i in range(60)
    )


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    redis = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield redis
    redis.kill()


@pytest.fixture(scope="module")
def servers(redis: RedisProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    shared = f'{{"type": "valkey", "startup_nodes": "{redis.address}", "num_workers": 2}}'
    folder = tmp_path_factory.mktemp("servers")
    flags = (*MEMORY, "--shared", shared)
    with ServerProcess(folder / "one", *flags) as one, ServerProcess(folder / "two", *flags) as two:
        yield [one, two]


async def ask(server: ServerProcess, number: int) -> tuple[list[tuple[int, tuple]], TurnFinished]:
    """One turn of a new session; its tokens with their log probabilities."""
    async with AsyncSessionClient(server.grpc_target, retry=PATIENT) as client:
        session = await client.open(system=system(number))
        running = session.generate(messages="Where does form 7 go?", sampling=GREEDY)
        said = []
        async for delta in running:
            said += [
                (token, (each.logprob, each.top_token_ids, each.top_logprobs))
                for token, each in zip(delta.token_ids, delta.logprobs, strict=True)
            ]
        return said, await running.wait()


def wait_until_stored(redis: RedisProcess) -> None:
    """Until the objects in Redis have not become more for a while."""
    count, since = redis.num_objects, time.monotonic()
    while not count or time.monotonic() - since < 1.0:
        time.sleep(0.05)
        if redis.num_objects != count:
            count, since = redis.num_objects, time.monotonic()


async def test_the_second_server_serves_the_firsts_prefix_bit_for_bit(
    redis: RedisProcess, servers: list[ServerProcess]
) -> None:
    first, cold = await ask(servers[0], 1)
    assert cold.usage.tokens_by_source.shared == 0
    wait_until_stored(redis)
    second, warm = await ask(servers[1], 1)
    assert second == first, "tokens and log probabilities, to the bit"
    assert warm.usage.tokens_by_source.shared >= 0.8 * warm.usage.prompt_tokens
    assert warm.usage.tokens_by_source.total == warm.usage.prompt_tokens


@pytest.mark.parametrize("what", ["frozen", "flushed", "killed"])
async def test_both_go_on_without_redis(redis: RedisProcess, servers: list[ServerProcess], what: str) -> None:
    number = {"frozen": 2, "flushed": 3, "killed": 4}[what]
    if what == "frozen":
        redis.freeze()
    elif what == "flushed":
        redis.command("FLUSHALL")
    else:
        redis.kill()
    try:
        one, _ = await ask(servers[0], number)
        two, end = await ask(servers[1], number)
        assert one == two
        assert end.usage.tokens_by_source.total == end.usage.prompt_tokens
    finally:
        if what == "frozen":
            redis.thaw()
        elif what == "killed":
            redis.start()
