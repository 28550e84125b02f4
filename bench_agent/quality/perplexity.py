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

ALTERNATIVES = 20


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``tokens`` tokens; ``found``: the share of them whose probability the server told."""

    perplexity: float
    tokens: int
    found: float
    method: str


async def perplexity(driver: OpenAiDriver, text: str, max_tokens: int) -> Perplexity:
    """Raises TargetError when the server answers neither way."""
    if driver.dialect.prompt_logprobs:
        values = (await driver.prompt_logprobs(text))[:max_tokens]
        if values:
            return _of(values, 1.0, "prompt")
    return await _step_by_step(driver, text, max_tokens)


async def _step_by_step(driver: OpenAiDriver, text: str, max_tokens: int) -> Perplexity:
    place = _word_end(text, 0)
    values: list[float] = []
    missed = 0
    conversation = driver.conversation("perplexity")
    while place < len(text) and len(values) < max_tokens:
        seen = Observation()
        sampling = Sampling(max_tokens=1, exact_length=False, logprobs=ALTERNATIVES)
        await conversation.turn(Ask(index=len(values), text=text[:place], sampling=sampling), seen)
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
    return _of(values, 1 - missed / len(values) if values else 0.0, "step by step, likeliest 20")


def _word_end(text: str, place: int) -> int:
    """Behind the word that comes next, white space before it included: tokens begin with their space."""
    found = re.compile(r"\s*\S+").match(text, place)
    return len(text) if found is None else found.end()


def _of(values: list[float], found: float, method: str) -> Perplexity:
    mean = sum(values) / len(values) if values else float("nan")
    return Perplexity(perplexity=math.exp(-mean), tokens=len(values), found=found, method=method)
