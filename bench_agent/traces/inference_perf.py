"""inference-perf's multi-turn inputs.

* conversations: ``{"id", "conversations": [{"from": "human" | "gpt" | "system", "value"}]}`` (the ShareGPT form);
* its data set lines: ``{"text_input", "output_length"}``;
* its ``conversation_replay`` settings (JSON, or YAML where PyYAML is installed): sessions are made from them.

The OTel files that it replays are read by the ``otel`` format.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from ..errors import TraceError
from ..workload.distributions import Distribution, Shape, fixed
from ..workload.plan import MessagesPrompt, SessionPlan, TextPrompt, Turn
from ..workload.synthetic import AgentShape, synthetic_workload
from .messages import conversation_turns, message_of
from .source import BadLines, Unusable, files_of, first_object, json_rows, number_of

_MOST_TOKENS = 200_000_000
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def sniff(first: object) -> bool:
    """Whether a first object is of this format."""
    if isinstance(first, list):
        return bool(first) and sniff(first[0])
    if not isinstance(first, dict):
        return False
    return isinstance(first.get("conversations"), list) or "text_input" in first or _settings(first) is not None


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions in the order of the file."""
    sessions: list[SessionPlan] = []
    for file in files_of(path, (".json", ".jsonl", ".yaml", ".yml")):
        document = _yaml(file) if file.suffix in (".yaml", ".yml") else first_object(file)
        settings = _settings(document)
        if settings is not None:
            sessions += _made_up(file, settings)
            continue
        for number, row in json_rows(file, bad):
            with bad.leaving_out(file, number):
                sessions.append(_session(row, f"{file.stem}-{number}"))
    return sessions


def _session(row: dict[str, Any], default_name: str) -> SessionPlan:
    if isinstance(row.get("text_input"), str):
        length = number_of(row.get("output_length"))
        turn = Turn(prompt=TextPrompt(row["text_input"]), output_tokens=int(length) if length else None)
        return SessionPlan(session_id=default_name, turns=(turn,))
    rows = row.get("conversations")
    if not isinstance(rows, list) or not rows:
        raise Unusable("neither conversations nor text_input")
    messages = []
    for entry in rows:
        if (
            not isinstance(entry, dict)
            or str(entry.get("from")) not in _ROLES
            or not isinstance(entry.get("value"), str)
        ):
            raise Unusable("an entry of conversations needs from (human, gpt, system) and value")
        messages.append(message_of({"role": _ROLES[entry["from"]], "content": entry["value"]}))
    turns = conversation_turns(messages)
    if not turns or not isinstance(turns[0].prompt, MessagesPrompt):
        raise Unusable("no message that asks for an answer")
    return SessionPlan(session_id=str(row.get("id", default_name)), turns=turns)


def _settings(document: object) -> dict[str, Any] | None:
    if not isinstance(document, dict):
        return None
    section = document.get("data", document)
    found = section.get("conversation_replay") if isinstance(section, dict) else None
    return found if isinstance(found, dict) else None


def _yaml(file: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise TraceError(file, 0, "PyYAML reads such files", remedy="pip install pyyaml, or give it as JSON") from None
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise TraceError(file, 0, f"not YAML: {error}") from None


def _made_up(file: Path, settings: dict[str, Any]) -> list[SessionPlan]:
    seed = int(number_of(settings.get("seed")) or 0)
    dynamic = _distribution(file, settings.get("dynamic_system_prompt_len"), fixed(0))
    shape = AgentShape(
        system_tokens=int(number_of(settings.get("shared_system_prompt_len")) or 0),
        task_tokens=_sum(dynamic, _distribution(file, settings.get("input_tokens_per_turn"), fixed(128))),
        turns=_distribution(file, settings.get("turns_per_conversation"), fixed(8)),
        tool_result_tokens=_distribution(file, settings.get("input_tokens_per_turn"), fixed(128)),
        output_tokens=_distribution(file, settings.get("output_tokens_per_turn"), fixed(128)),
        gap_s=_distribution(file, settings.get("tool_call_latency_sec"), fixed(0)),
    )
    count = int(number_of(settings.get("num_conversations")) or 1)
    _check_size(file, count, shape)
    return list(synthetic_workload(file.stem, shape, sessions=count, seed=seed).sessions)


def _check_size(file: Path, count: int, shape: AgentShape) -> None:
    """Refuse settings whose sessions nobody could hold."""
    turns, tokens = _mean(shape.turns), _mean(shape.tool_result_tokens) + _mean(shape.task_tokens)
    if not count * max(turns, 1.0) * max(tokens, 1.0) + shape.system_tokens <= _MOST_TOKENS:
        raise TraceError(file, 0, f"more than {_MOST_TOKENS:,} tokens would be made up", remedy="ask for fewer")


def _mean(distribution: Distribution) -> float:
    rng = random.Random(0)
    return sum(distribution.sample(rng) for _ in range(500)) / 500


def _sum(first: Distribution, second: Distribution) -> Distribution:
    mean = _mean(second)
    if first.shape is Shape.LOGNORMAL:
        return Distribution(first.shape, first.a + mean, first.b)
    both = first.shape is Shape.UNIFORM
    return Distribution(first.shape, first.a + mean, first.b + mean if both else first.b)


def _distribution(file: Path, row: object, default: Distribution) -> Distribution:
    """Its distributions, by mean and deviation, as ours. Bounds beyond those of ``uniform`` are not kept."""
    if row is None:
        return default
    if not isinstance(row, dict):
        raise TraceError(file, 0, "a distribution is not an object with type, mean and so on")
    mean = number_of(row.get("mean")) or 0.0
    deviation = number_of(row.get("std_dev")) or 0.0
    match row.get("type", "normal"):
        case "fixed":
            return fixed(mean)
        case "uniform":
            return Distribution(Shape.UNIFORM, number_of(row.get("min")) or 0.0, number_of(row.get("max")) or 0.0)
        case "normal":
            return Distribution(Shape.NORMAL, mean, deviation)
        case "lognormal" if mean > 0:
            return _lognormal(mean, deviation)
        case other:
            raise TraceError(file, 0, f"distributions of type {other!r} are not read")


def _lognormal(mean: float, deviation: float) -> Distribution:
    variance = math.log(1 + (deviation / mean) ** 2)
    return Distribution(Shape.LOGNORMAL, mean / math.exp(variance / 2), math.sqrt(variance))
