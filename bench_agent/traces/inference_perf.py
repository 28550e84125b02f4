"""inference-perf's multi-turn inputs.

* conversations: ``{"id", "conversations": [{"from": "human" | "gpt" | "system" | …, "value"}]}`` (the ShareGPT form);
* its data set lines: ``{"text_input", "output_length"}``, which aiperf's traces have too, with ``timestamp`` in ms;
* its settings, of ``conversation_replay`` and ``shared_prefix``: sessions are made from them.

The OTel files that it replays are read by the ``otel`` format.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import TraceError
from ..workload.plan import SessionPlan, TextPrompt, Turn
from .inference_perf_settings import Settings, settings_of
from .lineage import since_the_first
from .messages import conversation_turns, messages_of, tools_of
from .otel_content import from_json
from .rows import first_values, objects
from .source import BadLines, Unusable, files_of, name_of, number_of, tokens_of

_ROLES = MappingProxyType(
    {
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "assistant": "assistant",
        "chatgpt": "assistant",
        "bing": "assistant",
        "bard": "assistant",
        "model": "assistant",
        "function_call": "assistant",
        "system": "system",
        "tool": "tool",
        "observation": "tool",
        "function_response": "tool",
    }
)


def sniff(first: object) -> bool:
    """Whether a first value is of this format."""
    if isinstance(first, list):
        return bool(first) and sniff(first[0])
    if not isinstance(first, dict):
        return False
    return isinstance(first.get("conversations"), list) or "text_input" in first or settings_of(first) is not None


def read(path: Path, bad: BadLines) -> list[SessionPlan]:
    """Sessions in the order of the file."""
    found: list[tuple[SessionPlan, float | None]] = []
    for file in files_of(path, (".json", ".jsonl", ".yaml", ".yml")):
        document = _yaml(file) if _is_yaml(file) else next(iter(first_values(file, 1)), None)
        settings = settings_of(document)
        if settings is not None:
            found += [(session, None) for session in _made_up(file, settings)]
        elif _is_yaml(file):
            raise TraceError(file, 0, "no settings of conversation_replay or shared_prefix", remedy="name another file")
        else:
            for place, row in objects(file, bad):
                with bad.leaving_out(place):
                    found.append(_session(row, place.session_name, bad))
    return since_the_first(found)


def _is_yaml(file: Path) -> bool:
    return file.suffix in (".yaml", ".yml")


def _made_up(file: Path, settings: Settings) -> list[SessionPlan]:
    try:
        return settings.sessions()
    except Unusable as error:
        raise TraceError(file, 0, str(error), remedy="change the settings") from None


def _session(row: dict[str, Any], default_name: str, bad: BadLines) -> tuple[SessionPlan, float | None]:
    if isinstance(row.get("text_input"), str):
        if not row["text_input"]:
            raise Unusable("text_input is empty")
        turn = Turn(prompt=TextPrompt(row["text_input"]), output_tokens=tokens_of(row, "output_length") or None)
        stamp = number_of(row.get("timestamp"))
        plan = SessionPlan(session_id=name_of(row, ("session_id",), default_name), turns=(turn,))
        return plan, None if stamp is None else stamp / 1000
    rows = row.get("conversations")
    if not isinstance(rows, list):
        raise Unusable("neither conversations nor text_input")
    if not rows:
        raise Unusable("conversations is empty")
    if isinstance(row.get("system"), str) and row["system"]:
        rows = [{"from": "system", "value": row["system"]}, *rows]
    turns = conversation_turns([message for entry in rows for message in messages_of(_chat_row(entry), bad.remarks)])
    if not turns:
        raise Unusable("no message that asks for an answer")
    tools = tools_of(from_json(row["tools"])) if row.get("tools") else ()
    return SessionPlan(session_id=name_of(row, ("id", "session_id"), default_name), turns=turns, tools=tools), None


def _chat_row(entry: object) -> dict[str, Any]:
    """An entry as a message of OpenAI's. Raises Unusable."""
    if isinstance(entry, dict) and isinstance(entry.get("role"), str) and "from" not in entry:
        return entry
    if not isinstance(entry, dict) or str(entry.get("from")) not in _ROLES or not isinstance(entry.get("value"), str):
        raise Unusable(f"an entry of conversations needs value and from ({', '.join(_ROLES)})")
    return {"role": _ROLES[entry["from"]], "content": entry["value"]}


def _yaml(file: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise TraceError(file, 0, "PyYAML reads such files", remedy="pip install pyyaml, or give it as JSON") from None
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise TraceError(file, 0, f"not YAML: {error}") from None
