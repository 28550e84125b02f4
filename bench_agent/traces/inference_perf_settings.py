"""inference-perf's settings that describe conversations, and the sessions made from them.

``conversation_replay`` (also as ``generate_synthetic`` of its OTel replay) gives distributions; ``shared_prefix`` gives
groups of users with one system prompt each. How many rounds the users of ``shared_prefix`` talk is what the load's
stages send, divided by the users.
"""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from ..workload.distributions import Distribution, Shape, fixed
from ..workload.plan import MOST_TOKENS, SessionPlan
from ..workload.synthetic import AgentShape, synthetic_workload
from .source import Unusable, number_of

_MOST_MADE_UP = 200_000_000


class Settings(msgspec.Struct, frozen=True):
    """Settings of one kind, and how many requests the load's stages send (None: they do not say)."""

    section: dict[str, Any]
    shared_prefix: bool
    requests: float | None = None

    def sessions(self) -> list[SessionPlan]:
        """The sessions, the same for the same settings. Raises Unusable."""
        return _shared_prefix(self.section, self.requests) if self.shared_prefix else _conversations(self.section)


def settings_of(document: object) -> Settings | None:
    """The settings in a document; None where it has none that describe conversations."""
    if not isinstance(document, dict):
        return None
    data = document.get("data", document)
    if not isinstance(data, dict):
        return None
    replay = data.get("otel_trace_replay")
    generated = replay.get("generate_synthetic") if isinstance(replay, dict) else None
    for section in (data.get("conversation_replay"), generated):
        if isinstance(section, dict):
            return Settings(section, shared_prefix=False)
    if isinstance(data.get("shared_prefix"), dict):
        return Settings(data["shared_prefix"], shared_prefix=True, requests=_sent(document.get("load")))
    return None


def _sent(load: object) -> float | None:
    """How many requests the stages of a load send."""
    stages = load.get("stages") if isinstance(load, dict) else None
    if not isinstance(stages, list):
        return None
    rates = [
        (number_of(stage.get("rate")) or 0.0) * (number_of(stage.get("duration")) or 0.0)
        for stage in stages
        if isinstance(stage, dict)
    ]
    return sum(rates) or None


def _conversations(section: dict[str, Any]) -> list[SessionPlan]:
    new = _distribution(section.get("input_tokens_per_turn"), fixed(128))
    shape = AgentShape(
        system_tokens=_whole(section, "shared_system_prompt_len", 0),
        task_tokens=_sum(_distribution(section.get("dynamic_system_prompt_len"), fixed(0)), new),
        turns=_distribution(section.get("turns_per_conversation"), fixed(8)),
        tool_result_tokens=new,
        output_tokens=_distribution(section.get("output_tokens_per_turn"), fixed(128)),
        gap_s=_distribution(section.get("tool_call_latency_sec"), fixed(0)),
    )
    count = _whole(section, "num_conversations", 1)
    _check_size(count, shape)
    return list(synthetic_workload("", shape, sessions=count, seed=_whole(section, "seed", 0)).sessions)


def _shared_prefix(section: dict[str, Any], requests: float | None) -> list[SessionPlan]:
    groups = _whole(section, "num_unique_system_prompts", _whole(section, "num_groups", 10))
    users = _whole(section, "num_users_per_system_prompt", _whole(section, "num_prompts_per_group", 10))
    rounds = max(1.0, (requests or 0.0) / max(1, groups * users)) if section.get("enable_multi_turn_chat") else 1.0
    question = _distribution(section.get("question_len_distribution", section.get("question_len")), fixed(50))
    shape = AgentShape(
        system_tokens=_whole(section, "system_prompt_len", 100),
        task_tokens=question,
        turns=fixed(round(rounds)),
        tool_result_tokens=question,
        output_tokens=_distribution(section.get("output_len_distribution", section.get("output_len")), fixed(50)),
        gap_s=fixed(0),
    )
    _check_size(groups * users, shape)
    seed = _whole(section, "seed", 0)
    return [
        msgspec.structs.replace(session, session_id=f"group-{group}-user-{user}")
        for group in range(groups)
        for user, session in enumerate(
            synthetic_workload("", shape, sessions=users, seed=seed * 100_003 + group).sessions
        )
    ]


def _whole(section: dict[str, Any], key: str, default: int) -> int:
    value = section.get(key)
    if value is None:
        return default
    number = number_of(value)
    if number is None or not 0 <= number <= MOST_TOKENS:
        raise Unusable(f"{key} has to be a number from 0 to {MOST_TOKENS:,}, not {value!r:.40}")
    return int(number)


def _check_size(count: int, shape: AgentShape) -> None:
    """Refuse settings whose sessions nobody could hold."""
    turns, tokens = _mean(shape.turns), _mean(shape.tool_result_tokens) + _mean(shape.task_tokens)
    if not count * max(turns, 1.0) * max(tokens, 1.0) + shape.system_tokens <= _MOST_MADE_UP:
        raise Unusable(f"more than {_MOST_MADE_UP:,} tokens would be made up")


def _mean(distribution: Distribution) -> float:
    rng = random.Random(0)
    return sum(distribution.sample(rng) for _ in range(500)) / 500


def _sum(first: Distribution, second: Distribution) -> Distribution:
    mean = _mean(second)
    if first.shape is Shape.FIXED:
        return _moved(second, first.a)
    return _moved(first, mean)


def _moved(distribution: Distribution, by: float) -> Distribution:
    """All its numbers (of a lognormal, its median) greater by so much."""
    b = distribution.b + by if distribution.shape is Shape.UNIFORM else distribution.b
    most = None if distribution.most is None else distribution.most + by
    return Distribution(distribution.shape, distribution.a + by, b, distribution.least + by, most)


def _distribution(row: object, default: Distribution) -> Distribution:
    """Its distributions, by mean and deviation, as ours; a bare number is a fixed one."""
    if row is None:
        return default
    if isinstance(row, int | float) and not isinstance(row, bool):
        return fixed(_positive({"value": row}, "value"))
    if not isinstance(row, dict):
        raise Unusable("a distribution is not an object with type, mean and so on")
    mean, deviation, least = (_positive(row, key) for key in ("mean", "std_dev", "min"))
    most = _positive(row, "max") if row.get("max") is not None else None
    match row.get("type", row.get("distribution", "normal")):
        case "fixed":
            return fixed(mean)
        case "uniform":
            return Distribution(Shape.UNIFORM, least, most or 0.0)
        case "normal":
            return Distribution(Shape.NORMAL, mean, deviation, least, most)
        case "lognormal" if mean > 0:
            variance = math.log(1 + (deviation / mean) ** 2)
            return Distribution(Shape.LOGNORMAL, mean / math.exp(variance / 2), math.sqrt(variance), least, most)
        case other:
            raise Unusable(f"distributions of type {other!r} are not read")


def _positive(row: dict[str, Any], key: str) -> float:
    if row.get(key) is None:
        return 0.0
    number = number_of(row[key])
    if number is None or not 0 <= number <= MOST_TOKENS:
        raise Unusable(f"{key} of a distribution has to be a number from 0 to {MOST_TOKENS:,}, not {row[key]!r:.40}")
    return number
