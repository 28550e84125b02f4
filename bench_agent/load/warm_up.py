"""Turns before the measurement: they wake the server up, and cold ones of several lengths show its prefill speed."""

from __future__ import annotations

import logging
import random
import secrets

from ..driver.ask import Ask, Driver, Sampling
from ..driver.observation import Observation
from ..errors import TargetError
from ..metrics.prefill_fit import PrefillFit, fit
from ..workload.plan import Message
from ..workload.text import made_up_text
from .attempts import attempt

logger = logging.getLogger(__name__)

_LENGTHS = (64, 256, 768)


async def warm_up(driver: Driver, turns: int, retries: int) -> None:
    """``turns`` short turns, one after the other. Raises TargetError when none of them succeeds."""
    failures: list[TargetError] = []
    for number in range(turns):
        try:
            await _ask(driver, f"Say hello, number {number}.", 4, retries)
        except TargetError as error:
            logger.warning("a turn of the warm-up failed: %s", error)
            failures.append(error)
    if failures and len(failures) == turns:
        raise failures[-1]


async def prefill_speed(driver: Driver, context_length: int | None, retries: int) -> PrefillFit | None:
    """Time to the first token of prompts that nobody has sent before (they begin with a random number).

    None when the server does not say how long prompts are, longer ones are not slower, or one of them fails: the run
    goes without.
    """
    samples: list[tuple[int, float]] = []
    for length in _LENGTHS:
        if context_length is not None and length + 64 > context_length:
            continue
        for _ in range(2):
            nonce = secrets.token_hex(8)
            try:
                seen = await _ask(driver, nonce + made_up_text(random.Random(nonce), length), 2, retries)
            except TargetError as error:
                logger.warning("no hit rate by time: a cold prompt failed: %s", error)
                return None
            if seen.retries:  # its time is of more than the prompt
                continue
            if seen.usage.prompt_tokens and seen.arrivals:
                samples.append((seen.usage.prompt_tokens, seen.arrivals[0][0] - seen.started))
    return fit(samples)


async def _ask(driver: Driver, text: str, max_tokens: int, retries: int) -> Observation:
    conversation = driver.conversation("warm-up")
    message = (Message("user", text),)
    seen = Observation()
    try:
        ask = Ask(index=0, conversation=message, new=message, sampling=Sampling(max_tokens=max_tokens))
        await attempt(conversation, ask, seen, retries)
    finally:
        await conversation.close()
    return seen
