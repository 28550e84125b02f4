"""How servers that speak OpenAI's protocol differ: what makes answers equally long, and what says who they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..errors import BenchError


@dataclass(frozen=True, slots=True)
class Dialect:
    """``exact_length`` is put into the body so that an answer has exactly ``max_tokens`` tokens.

    ``cold``: headers and body fields, from a nonce, that keep a request apart from what requests of others left
    in the cache (None: no such thing here); ``shares``: requests of one nonce still share among themselves.
    ``prompt_logprobs``: ``echo`` with ``logprobs`` gives those of the prompt.
    """

    name: str
    says: str
    exact_length: Callable[[int], Mapping[str, Any]]
    cold: Callable[[str], tuple[Mapping[str, str], Mapping[str, Any]]] | None = None
    shares: bool = True
    takes_stream_usage: bool = True
    prompt_logprobs: bool = False


def _nothing(_: int) -> Mapping[str, Any]:
    return {}


def _ignore_eos(_: int) -> Mapping[str, Any]:
    return {"ignore_eos": True}


def _min_tokens(max_tokens: int) -> Mapping[str, Any]:
    return {"min_tokens": max_tokens}


_ALL = (
    Dialect(
        "sessile",
        "this repository's server",
        _ignore_eos,
        cold=lambda nonce: ({"x-sessile-tenant": f"cold-{nonce}"}, {}),
    ),
    Dialect("vllm", "vLLM", _ignore_eos, cold=lambda nonce: ({}, {"cache_salt": nonce}), prompt_logprobs=True),
    Dialect(
        "llama-server",
        "llama.cpp's server",
        _ignore_eos,
        cold=lambda nonce: ({}, {"cache_prompt": False}),
        shares=False,
    ),
    Dialect("llama-cpp-python", "llama-cpp-python's server", _min_tokens, prompt_logprobs=True),
    Dialect("openai", "any other; answers may end early", _nothing),
)
DIALECTS: Mapping[str, Dialect] = MappingProxyType({dialect.name: dialect for dialect in _ALL})


def dialect_named(name: str) -> Dialect:
    """Raises BenchError listing what there is."""
    if name not in DIALECTS:
        raise BenchError(f"no dialect is called {name!r}", remedy=f"there are: {', '.join(DIALECTS)}")
    return DIALECTS[name]
