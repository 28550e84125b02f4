"""The pools that tests of the tiers run on, and an engine in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import pytest_asyncio
from staged_pool import staged_pools
from tiny_engine import tiny_engine_config
from tiny_llama import make_tiny_llama

from sessile.server.engine.client import EngineClient


@pytest.fixture(scope="module", params=["in memory", "staged"])
def pool(request: pytest.FixtureRequest) -> Iterator[None]:
    """A pool in this machine's memory, or a GPU's that is not there."""
    with staged_pools() if request.param == "staged" else nullcontext():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a tiny model."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(tiny_engine_config(folder))
    await client.start()
    yield client
    await client.close()
