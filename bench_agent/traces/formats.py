"""The formats by name, and how a file's format is recognised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BenchError, TraceError
from ..workload.plan import SessionPlan, Workload, check_session
from . import (
    aiperf,
    claude_code,
    codex,
    conversations,
    hash_trace,
    inference_perf,
    native,
    otel,
    swe_agent,
    text_trace,
    weka,
    writers,
)
from .source import UNUSABLE, BadLines, files_of, first_object, reason_of, sha256_of

_SUFFIXES = (".jsonl", ".json", ".traj", ".ndjson", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format: how it is recognised, read and, for some, written."""

    name: str
    says: str
    sniff: Callable[[object], bool]
    read: Callable[[Path, BadLines], list[SessionPlan]]
    write: Callable[[Workload, Path], None] | None = None


FORMATS = (
    TraceFormat("native", "the harness's own, whole", native.sniff, native.read, native.write),
    TraceFormat(
        "text", "whole prompts and answers as text", text_trace.sniff, text_trace.read, writers.write_text_trace
    ),
    TraceFormat("hash", "Mooncake's block hashes", hash_trace.sniff, hash_trace.read, writers.write_hash_trace),
    TraceFormat("weka", "Weka / AgentX traces", weka.sniff, weka.read, writers.write_weka),
    TraceFormat("swe-agent", "SWE-agent's .traj, mini-swe-agent's .traj.json", swe_agent.sniff, swe_agent.read),
    TraceFormat("claude-code", "Claude Code's session files", claude_code.sniff, claude_code.read),
    TraceFormat("codex", "Codex's rollout files", codex.sniff, codex.read),
    TraceFormat("otel", "OTel GenAI spans", otel.sniff, otel.read, writers.write_otel),
    TraceFormat(
        "inference-perf",
        "inference-perf's conversations and settings",
        inference_perf.sniff,
        inference_perf.read,
        writers.write_inference_perf,
    ),
    TraceFormat(
        "conversations",
        "OpenAI-style lists of messages, captured requests",
        conversations.sniff,
        conversations.read,
        writers.write_conversations,
    ),
    TraceFormat("aiperf", "aiperf's multi-turn files", aiperf.sniff, aiperf.read, writers.write_aiperf),
)


def format_named(name: str) -> TraceFormat:
    """Raises BenchError listing the formats."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise BenchError(f"no trace format is called {name!r}", remedy=f"there are: {', '.join(f.name for f in FORMATS)}")


def recognised(path: Path) -> TraceFormat:
    """The format of a file, or of the first file below a folder. Raises TraceError when none matches."""
    files = files_of(path, _SUFFIXES)
    if files[0].suffix in (".yaml", ".yml"):
        return format_named("inference-perf")
    first = first_object(files[0])
    for known in FORMATS:
        if known.sniff(first):
            return known
    names = ", ".join(known.name for known in FORMATS)
    raise TraceError(files[0], 1, "of no format that is known here", remedy=f"name it with --format: {names}")


def read_workload(path: Path, bad: BadLines, format_name: str | None = None) -> Workload:
    """The sessions of a trace. Raises TraceError."""
    known = format_named(format_name) if format_name else recognised(path)
    try:
        sessions = [session for session in known.read(path, bad) if session.turns]
    except UNUSABLE as error:  # in what a reader puts together from several lines
        raise TraceError(path, 0, f"not usable as {known.name}: {reason_of(error)}") from error
    if not sessions:
        raise TraceError(path, 0, f"no session that could be sent ({known.name})")
    for session in sessions:
        check_session(session)
    notes = tuple(f"left out: {line}" for line in bad.skipped)
    return Workload(
        name=path.stem,
        format=known.name,
        sessions=tuple(sessions),
        source_sha256=sha256_of(files_of(path, _SUFFIXES)),
        notes=notes,
    )
