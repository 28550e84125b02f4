"""Perplexity of a given text.

Where the server gives the probabilities of a prompt's tokens, from those. Elsewhere step by step: the server is asked
for the likeliest next tokens after the text so far; the longest of them with which the text goes on is the text's
token. Where none of them is, the text is less likely there than any: the step counts with the least of them (so the
perplexity is a lower bound), and ``found`` says how often that did not happen. Both ways are comparable over servers
of one model only with themselves.
"""

from __future__ import annotations

import math
import re

import msgspec

from ..driver.ask import Ask, Sampling
from ..driver.observation import Observation
from ..driver.openai_http import OpenAiDriver
from ..load.attempts import RETRIES, attempt

ALTERNATIVES = 20
_LEAST = -700.0  # what is told as less likely on average has a perplexity that is no number any more


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``tokens`` tokens; ``found``: the share of them whose probability the server told."""

    perplexity: float
    tokens: int
    found: float
    method: str


async def perplexity(driver: OpenAiDriver, text: str, max_tokens: int) -> Perplexity | None:
    """None when the server tells no probabilities. Raises TargetError when it does not answer."""
    if driver.dialect.prompt_logprobs:
        values = (await driver.prompt_logprobs(text))[:max_tokens]
        if values:
            return _of(values, 1.0, "prompt")
    return await _step_by_step(driver, text, max_tokens)


async def _step_by_step(driver: OpenAiDriver, text: str, max_tokens: int) -> Perplexity | None:
    place = _word_end(text, 0)
    values: list[float] = []
    missed = 0
    conversation = driver.conversation("perplexity")
    while place < len(text) and len(values) < max_tokens:
        seen = Observation()
        sampling = Sampling(max_tokens=1, exact_length=False, logprobs=ALTERNATIVES)
        await attempt(conversation, Ask(index=len(values), text=text[:place], sampling=sampling), seen, RETRIES)
        if not seen.logprobs:
            break
        step = {seen.logprobs[0].token: seen.logprobs[0].logprob} | seen.logprobs[0].top
        fitting = [token for token in step if token and text.startswith(token, place)]
        if fitting:
            token = max(fitting, key=len)
            values.append(step[token])
            place += len(token)
        else:
            missed += 1
            values.append(min(step.values()))
            place = _word_end(text, place)
    return _of(values, 1 - missed / len(values), "step by step, likeliest 20") if values else None


def _word_end(text: str, place: int) -> int:
    """Behind the word that comes next, white space before it included: tokens begin with their space."""
    found = re.compile(r"\s*\S+").match(text, place)
    return len(text) if found is None else found.end()


def _of(values: list[float], found: float, method: str) -> Perplexity:
    mean = max(_LEAST, sum(values) / len(values))
    return Perplexity(perplexity=math.exp(-mean), tokens=len(values), found=found, method=method)
