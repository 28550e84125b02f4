from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from manager_bench import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "data")
    bench.start()
    yield bench
    bench.stop()
