"""Logarithms of probabilities in OpenAI's protocol: of an answer's tokens, and of a prompt's that is echoed."""

from __future__ import annotations

import msgspec

from .ask import TurnRefused
from .observation import TokenLogprob
from .sse import Choice


class _EchoedLogprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []


class _EchoedChoice(msgspec.Struct):
    logprobs: _EchoedLogprobs | None = None


class _Echoed(msgspec.Struct):
    choices: list[_EchoedChoice] = []


def echoed_logprobs(raw: bytes) -> list[float]:
    """Of the prompt's tokens but the first, from an answer of one token more. Raises TurnRefused."""
    try:
        found = msgspec.json.decode(raw, type=_Echoed).choices[0].logprobs
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
        raise TurnRefused(f"an answer that cannot be read: {error}") from error
    values = [] if found is None else found.token_logprobs[:-1]
    return [value for value in values if value is not None]


def answer_logprobs(choice: Choice) -> list[TokenLogprob]:
    """Of an event's tokens. Raises TurnRefused."""
    try:
        return _logprobs(choice)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TurnRefused(f"logprobs that cannot be read: {error!r}") from error


def _logprobs(choice: Choice) -> list[TokenLogprob]:
    found = choice.logprobs
    if not isinstance(found, dict):
        return []
    if isinstance(found.get("content"), list):
        return [
            TokenLogprob(
                entry["token"],
                float(entry["logprob"]),
                {other["token"]: float(other["logprob"]) for other in entry.get("top_logprobs") or ()},
            )
            for entry in found["content"]
        ]
    tokens, values = found.get("tokens") or [], found.get("token_logprobs") or []
    tops = found.get("top_logprobs") or [{}] * len(tokens)
    return [
        TokenLogprob(token, float(value), {text: float(one) for text, one in (top or {}).items()})
        for token, value, top in zip(tokens, values, tops, strict=False)
        if value is not None
    ]
