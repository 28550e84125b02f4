"""One turn, sent again while the server is busy or not to be reached and nothing of the answer has come."""

from __future__ import annotations

import asyncio

from ..driver.ask import Ask, Conversation, ServerBusy, ServerSilent, ServerUnreachable
from ..driver.observation import Observation

RETRIES = 3  # where nobody says how many
LONGEST_WAIT_S = 60.0  # what is asked to come back later than that has failed


async def attempt(conversation: Conversation, ask: Ask, seen: Observation, retries: int) -> None:
    """At most ``retries`` times again, which ``seen`` counts. Raises what the last attempt raised."""
    while True:
        try:
            await conversation.turn(ask, seen)
            return
        except (ServerBusy, ServerUnreachable) as error:
            wait = error.retry_after_s or 0.1 * 2 ** (seen.retries + 1)
            if isinstance(error, ServerSilent) or seen.arrivals or seen.retries >= retries or wait > LONGEST_WAIT_S:
                raise
            seen.retries += 1
            await asyncio.sleep(wait)
