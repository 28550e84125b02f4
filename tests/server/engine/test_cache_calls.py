"""Who hears of what happens in the engine's cache, and until when."""

from __future__ import annotations

import asyncio

from sessile.server.engine.cache_calls import CacheCalls
from sessile.server.engine.cache_messages import CacheEvent, CacheEventKind, CacheEvents
from sessile.sessions.errors import EngineError

EVENT = CacheEvent(kind=CacheEventKind.DEMOTED, tier="host", tokens=16, owner="ses_1", at=1.0)


async def test_listeners_go_on_over_the_death_of_an_engine_and_end_with_the_last() -> None:
    calls = CacheCalls()
    listening = asyncio.ensure_future(heard(calls))
    await asyncio.sleep(0)
    calls.happened(CacheEvents(events=[EVENT]))
    calls.fail(EngineError("the engine died"))
    calls.happened(CacheEvents(events=[EVENT, EVENT]))
    calls.close(EngineError("the engine is closed"))
    assert [len(batch.events) for batch in await listening] == [1, 2]
    assert await heard(calls) == []  # nothing is waited for that never comes


async def heard(calls: CacheCalls) -> list[CacheEvents]:
    return [batch async for batch in calls.events()]
