"""Turns for the simulator out of recorded traces of requests.

A line of such a trace is ``{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`` (the format of
Mooncake's traces): each hash id stands for 512 tokens, equal ids for equal tokens, so what requests share is kept
though their text is not known. The traces name neither tenants nor classes: both are drawn here, by the seed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from ....sessions.errors import RequestError
from ..messages import Priority, SubmitTurn
from ..sampling_params import SamplingParams

HASH_TOKENS = 512


class TraceRequest(msgspec.Struct, frozen=True):
    """One line of a trace. ``timestamp``: milliseconds since its start."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Mix:
    """Who sends turns: how much of them is of which class, and of which tenants, each ``skew`` times as busy as the
    next."""

    background: float = 0.2
    batch: float = 0.1
    tenants: int = 8
    skew: float = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """A turn, and when it comes: seconds since the start."""

    time: float
    turn: SubmitTurn


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first ``limit`` requests of a trace; None: all.

    Raises:
        RequestError: a line is not what it should be.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    requests: list[TraceRequest] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and len(requests) >= limit:
                break
            try:
                requests.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise RequestError(f"{path.name}, line {number}: {error}", field="trace") from error
    return requests


def arrivals(
    requests: list[TraceRequest], speed: float, mix: Mix, most_tokens: int, seed: int = 0
) -> Iterator[Arrival]:
    """The turns of a trace that comes ``speed`` times as fast as it was recorded. Prompts longer than ``most_tokens``
    are left out, as a server would refuse them."""
    chance = random.Random(seed)
    weights = [mix.skew**-index for index in range(mix.tenants)]
    classes = (1.0 - mix.background - mix.batch, mix.background, mix.batch)
    for index, request in enumerate(requests):
        tenant = chance.choices(range(mix.tenants), weights)[0]
        priority = chance.choices(tuple(Priority), classes)[0]
        if request.input_length + request.output_length > most_tokens:
            continue
        yield Arrival(
            time=request.timestamp / 1000 / speed,
            turn=SubmitTurn(
                turn_id=str(index),
                token_ids=_tokens(request),
                sampling=SamplingParams(max_tokens=request.output_length, seed=0, ignore_eos=True),
                tenant=f"tenant-{tenant}",
                priority=priority,
            ),
        )


def _tokens(request: TraceRequest) -> list[int]:
    """Tokens that are equal where the hash ids are."""
    runs = np.array(request.hash_ids, dtype=np.int64)[:, None] * HASH_TOKENS + np.arange(HASH_TOKENS)
    tokens: list[int] = (runs.ravel()[: request.input_length] % (1 << 31)).tolist()
    return tokens or [0]
