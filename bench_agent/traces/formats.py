"""The formats by name, and how a file's format is recognised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import BenchError, TraceError
from ..workload.plan import SessionPlan, Workload, check_session
from . import (
    aiperf,
    block_writers,
    claude_code,
    codex,
    conversations,
    hash_trace,
    inference_perf,
    native,
    otel,
    otel_writer,
    swe_agent,
    text_trace,
    weka,
    writers,
)
from .losses import ALL, Trait
from .rows import first_values, values
from .source import UNUSABLE, BadLines, Place, files_of, reason_of, sha256_of

_SUFFIXES = (".jsonl", ".json", ".traj", ".ndjson", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format: how it is recognised, read and, for some, written, and what is kept when it is read again."""

    name: str
    says: str
    sniff: Callable[[object], bool]
    read: Callable[[Path, BadLines], list[SessionPlan]]
    write: Callable[[Workload, Path], None] | None = None
    keeps: frozenset[Trait] = frozenset()


_NO_BLOCKS = frozenset({Trait.UNDER_64, Trait.UNDER_512})  # their texts share what the blocks shared
_TALK = _NO_BLOCKS | {Trait.LINKS, Trait.ANSWERS, Trait.TEXTS}
_SIZES = frozenset({Trait.GAPS, Trait.LENGTHS, Trait.BLOCKS, Trait.UNANSWERED})

FORMATS = (
    TraceFormat("native", "the harness's own, whole", native.sniff, native.read, native.write, ALL),
    TraceFormat(
        "text",
        "whole prompts and answers as text",
        text_trace.sniff,
        text_trace.read,
        writers.write_text_trace,
        _NO_BLOCKS | {Trait.GAPS, Trait.ARRIVALS, Trait.ANSWERS, Trait.TEXTS, Trait.PLAIN},
    ),
    TraceFormat(
        "hash",
        "Mooncake's block hashes",
        hash_trace.sniff,
        hash_trace.read,
        block_writers.write_hash_trace,
        _SIZES | {Trait.ARRIVALS, Trait.UNDER_64},  # told by the larger size
    ),
    TraceFormat(
        "weka",
        "Weka / AgentX traces",
        weka.sniff,
        weka.read,
        block_writers.write_weka,
        _SIZES | {Trait.AGENTS, Trait.SUB_OVERLAPS, Trait.UNDER_512},
    ),
    TraceFormat("swe-agent", "SWE-agent's .traj, mini-swe-agent's .traj.json", swe_agent.sniff, swe_agent.read),
    TraceFormat("claude-code", "Claude Code's session files", claude_code.sniff, claude_code.read),
    TraceFormat("codex", "Codex's rollout files", codex.sniff, codex.read),
    TraceFormat(
        "otel",
        "OTel GenAI spans",
        otel.sniff,
        otel.read,
        otel_writer.write_otel,
        ALL - {Trait.OVERLAPS, Trait.SUB_OVERLAPS, Trait.PLAIN, Trait.BLOCKS, Trait.UNRECORDED},
    ),
    TraceFormat(
        "inference-perf",
        "inference-perf's conversations and settings",
        inference_perf.sniff,
        inference_perf.read,
        writers.write_inference_perf,
        _TALK,
    ),
    TraceFormat(
        "conversations",
        "OpenAI-style lists of messages, captured requests",
        conversations.sniff,
        conversations.read,
        writers.write_conversations,
        _TALK | {Trait.CALLS, Trait.TOOLS},
    ),
    TraceFormat(
        "aiperf",
        "aiperf's multi-turn files",
        aiperf.sniff,
        aiperf.read,
        writers.write_aiperf,
        _NO_BLOCKS | {Trait.LINKS, Trait.GAPS, Trait.LENGTHS, Trait.TEXTS, Trait.UNANSWERED},
    ),
)


def format_named(name: str) -> TraceFormat:
    """Raises BenchError listing the formats."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise BenchError(f"no trace format is called {name!r}", remedy=f"there are: {', '.join(f.name for f in FORMATS)}")


def recognised(path: Path) -> TraceFormat:
    """The format of a file, or of the first file below a folder that has one. Raises TraceError when none matches."""
    files = files_of(path, _SUFFIXES)
    for file in files:
        known = _format_of(file, alone=len(files) == 1)
        if known is not None:
            return known
    names = ", ".join(known.name for known in FORMATS)
    raise _unknown(files[0], f"name it with --format: {names}")


def _format_of(file: Path, *, alone: bool) -> TraceFormat | None:
    """What the first of a file's values that any format knows is of. YAML is only ever settings of inference-perf."""
    if file.suffix in (".yaml", ".yml"):
        return format_named("inference-perf") if alone else None
    for value in first_values(file):
        entry = value[0] if isinstance(value, list) and value else value  # of an array that is the whole file
        for known in FORMATS:
            if known.sniff(value) or known.sniff(entry):
                return known
    return None


def _unknown(file: Path, remedy: str) -> TraceError:
    """Why a file is of no format: it is empty, or no JSON, or says something else."""
    if not file.stat().st_size:
        return TraceError(file, 0, "an empty file", remedy="name another, or write the trace again")
    try:
        any(values(file, BadLines()))
    except TraceError as error:
        return error
    return TraceError(file, 1, "of no format that is known here", remedy=remedy)


def read_workload(path: Path, bad: BadLines, format_name: str | None = None) -> Workload:
    """The sessions of a trace, each under a name of its own. Raises TraceError."""
    known = format_named(format_name) if format_name else recognised(path)
    try:
        sessions = [session for session in known.read(path, bad) if session.turns and _is_sound(session, path, bad)]
    except UNUSABLE as error:  # in what a reader puts together from several lines
        raise TraceError(path, 0, f"not usable as {known.name}: {reason_of(error)}") from error
    if not sessions:
        raise TraceError(path, 0, _nothing_to_send(known, bad), remedy="name another file, or another --format")
    return Workload(
        name=path.stem,
        format=known.name,
        sessions=_named_apart(sessions),
        source_sha256=sha256_of(files_of(path, _SUFFIXES)),
        notes=bad.notes(),
    )


def _is_sound(session: SessionPlan, path: Path, bad: BadLines) -> bool:
    """Whether what was put together from several lines can be: times that lie too far apart cannot."""
    try:
        check_session(session)
    except BenchError as error:
        bad.found(Place(path), str(error))
        return False
    return True


def _nothing_to_send(known: TraceFormat, bad: BadLines) -> str:
    return "; ".join([f"no session that could be sent ({known.name})", *bad.notes()[:3]])


def _named_apart(sessions: Iterable[SessionPlan]) -> tuple[SessionPlan, ...]:
    """Two sessions of one name would be one to a server: the second is called ``name#2``, and so on."""
    taken: set[str] = set()
    found: list[SessionPlan] = []
    uses: Counter[str] = Counter()
    for session in sessions:
        name = session.session_id
        while name in taken:
            uses[session.session_id] += 1
            name = f"{session.session_id}#{uses[session.session_id] + 1}"
        taken.add(name)
        found.append(session if name == session.session_id else msgspec.structs.replace(session, session_id=name))
    return tuple(found)
