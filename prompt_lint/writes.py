"""PL607 and PL706: judged at the end of a trace, over many requests."""

from __future__ import annotations

from dataclasses import dataclass

from .causes import Causes, Loss
from .findings import Severity
from .lineage import Entry, Match
from .profiles import CacheProfile, minimum_of
from .prompt import CHARS_PER_TOKEN
from .rules.base import Verdict

_LEAST_UNREAD = 3
_LEAST_LINEAGES = 4
_EXTRA_OF_A_WRITE = 0.25


@dataclass(slots=True)
class _Write:
    entry: Entry
    tokens: int
    read: bool = False


class UnreadWrites:
    """Marked prefixes that were written to the cache and never read (PL607)."""

    def __init__(self) -> None:
        self._writes: dict[int, _Write] = {}

    def note(self, entry: Entry, match: Match, parent: Entry | None, profile: CacheProfile) -> None:
        """Count one request's write, and the reads that it does."""
        for reader in (match.nearest, parent):
            if reader is not None and id(reader) in self._writes and self._reaches(reader, match):
                self._writes[id(reader)].read = True
        prompt = entry.prompt
        marks = prompt.marker_positions
        if not profile.explicit or not marks:
            return
        usage = prompt.request.usage
        tokens = prompt.ends[marks[-1][0]] // CHARS_PER_TOKEN
        written = usage.written_tokens if usage and usage.written_tokens is not None else tokens
        if written and tokens >= minimum_of(profile, prompt.request.model) and not (usage and usage.cached_tokens):
            self._writes[id(entry)] = _Write(entry, written)

    @staticmethod
    def _reaches(reader: Entry, match: Match) -> bool:
        ends = [reader.prompt.ends[i] for i, _ in reader.prompt.marker_positions]
        return bool(ends) and match.cached_chars >= min(ends)

    def report(self, causes: Causes) -> None:
        """One finding when most writes of one-shot calls were for nothing."""
        unread = [w for w in self._writes.values() if not w.read and w.entry.lineage.length == 1]
        if len(unread) < _LEAST_UNREAD or len(unread) < 0.5 * len(self._writes):
            return
        total = sum(w.tokens for w in unread)
        first = unread[0].entry.prompt
        message = f"{len(unread)} cache writes of {total} tokens were never read"
        verdict = Verdict("PL607", message, cap=Severity.WARNING, floor=Severity.WARNING, needs_loss=False)
        prompts = sum(w.entry.prompt.tokens for w in unread)
        loss = Loss(int(total * _EXTRA_OF_A_WRITE), prompts)
        causes.add(verdict, first, None, "cache_control", None, loss, "writes")


class BlockStraddles:
    """Shared parts that end inside a cache block (PL706, off by default)."""

    def __init__(self) -> None:
        self._rests: list[tuple[Entry, int]] = []

    def note(self, entry: Entry, match: Match, parent: Entry | None, profile: CacheProfile) -> None:
        """Count the tokens behind the last whole block of a new lineage's shared part."""
        if parent is not None or match.nearest is None:
            return
        shared = match.cached_chars // CHARS_PER_TOKEN
        self._rests.append((entry, shared % profile.granularity))

    def report(self, causes: Causes, profile_name: str) -> None:
        """One finding for the trace."""
        lost = sum(rest for _, rest in self._rests)
        if len(self._rests) < _LEAST_LINEAGES or lost < 16 * len(self._rests):
            return
        first = self._rests[0][0].prompt
        mean = lost // len(self._rests)
        message = f"shared parts end inside a block of {profile_name}: about {mean} tokens a session are lost"
        verdict = Verdict("PL706", message, cap=Severity.INFO, needs_loss=False)
        causes.add(verdict, first, None, None, None, Loss(mean, first.tokens), "blocks")
