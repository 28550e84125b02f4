from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import pytest
from web_bench import WebBench


@pytest.fixture
async def sdk(web: WebBench) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's own client."""
    async with (
        web.served() as url,
        anthropic.AsyncAnthropic(api_key="any", base_url=url, max_retries=0) as client,
    ):
        yield client
