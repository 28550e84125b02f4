from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from web_bench import WebBench


@pytest.fixture
async def sdk(web: WebBench) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client."""
    async with web.served() as url, openai.AsyncOpenAI(api_key="any", base_url=f"{url}/v1", max_retries=0) as client:
        yield client
