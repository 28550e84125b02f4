"""Which earlier request a request continues, and what any earlier request already put in the cache."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat

from .divergence import common_chars
from .grammars.words import SUMMARY
from .prompt import Prompt, Section, Unit
from .request import ApiShape

_KEPT_CHARS = 40_000_000
_KEPT_ENTRIES = 512
_CHAIN_LIMIT = 400_000
_RECENT = 12
_BRANCHES = 12  # of one place, the latest ones are remembered
_BRANCH_LIMIT = 20_000
_ALIKE = 0.3


@dataclass(slots=True)
class Lineage:
    """A chain of requests of which each continues the one before."""

    number: int
    session: str | None
    length: int = 0
    frozen: int = 0  # requests in a row whose last marker did not move


@dataclass(eq=False)
class Entry:
    """An earlier request that may still be continued."""

    prompt: Prompt
    lineage: Lineage

    @cached_property
    def digests(self) -> dict[int, int]:
        """Digest -> size of every unit."""
        return {unit.digest: unit.size for unit in self.prompt.units}

    @cached_property
    def conversation_digests(self) -> dict[int, int]:
        """Digest -> size of the units after tools and system text."""
        return {unit.digest: unit.size for unit in self.prompt.conversation}

    @cached_property
    def lines(self) -> frozenset[int]:
        """Hashes of all lines of prose of the conversation."""
        return frozenset(lines_of(self.prompt.conversation))

    @cached_property
    def head_lines(self) -> frozenset[int]:
        """Hashes of all lines of prose of tools, system text and first message."""
        static = sum(1 for unit in self.prompt.units if unit.section is not Section.MESSAGES)
        text = self.prompt.request.shape is ApiShape.TEXT
        return frozenset(lines_of(self.prompt.units if text else self.prompt.units[: static + 1]))


Branches = dict[int, "weakref.ref[Entry]"]  # where chains part: digest of the next unit -> a request that has it


def lines_of(units: Iterable[Unit]) -> Iterator[int]:
    """Hashes of the lines of at least 12 characters of some units."""
    for unit in units:
        for line in unit.text.split("\n"):
            if len(line) >= 12:
                yield hash(line)


@dataclass(frozen=True)
class Match:
    """What was found for a request. `cached_chars` is the longest prefix that ANY earlier request shares."""

    parent: Entry | None
    cached_chars: int
    nearest: Entry | None
    neighbours: tuple[Entry, ...] = field(default=())


class LineageIndex:
    """Finds parents and the longest common prefix over everything seen, in bounded memory."""

    def __init__(self, kept_chars: int = _KEPT_CHARS, kept_entries: int = _KEPT_ENTRIES) -> None:
        self._kept_chars = kept_chars
        self._kept_entries = kept_entries
        self._chains: OrderedDict[int, Entry] = OrderedDict()
        self._branches: OrderedDict[int, Branches] = OrderedDict()
        self._talks: OrderedDict[tuple[str | None, int], Entry] = OrderedDict()
        self._recent: OrderedDict[int, Entry] = OrderedDict()
        self._by_session: dict[str | None, list[Entry]] = {}
        self._starts: list[Entry] = []
        self._chars = 0
        self._lineages = 0

    def find(self, prompt: Prompt) -> Match:
        """Look a request up; changes nothing."""
        nearest, cached = self._longest_prefix(prompt)
        if nearest is not None and self._continues(prompt, nearest, cached):
            return Match(nearest, cached, nearest, tuple(self._starts))
        candidates = list(self._candidates(prompt, nearest))
        parent = self._choose(prompt, candidates) if candidates else None
        return Match(parent, cached, nearest, tuple(self._starts))

    @property
    def lineages(self) -> int:
        """How many lineages were seen."""
        return self._lineages

    @property
    def kept_chars(self) -> int:
        """Characters of the requests that are remembered."""
        return self._chars

    @property
    def has_requests(self) -> bool:
        """True once a request was added."""
        return self._lineages > 0

    def recent(self, session: str | None) -> list[Entry]:
        """The latest requests of a session, newest first."""
        return list(reversed(self._by_session.get(session, [])))

    def _continues(self, prompt: Prompt, nearest: Entry, cached: int) -> bool:
        """The usual case: the nearest request's whole prompt is a prefix, and no other shares more of the talk."""
        old = nearest.prompt
        if cached < old.total_chars or old.request.session != prompt.request.session:
            return False
        found = next(self._talk_candidates(prompt, prompt.request.session), None)
        return found is nearest and old.request.shape is prompt.request.shape

    def add(self, prompt: Prompt, parent: Entry | None) -> Entry:
        """Remember a request as the newest of its lineage."""
        if parent is None:
            lineage = Lineage(self._lineages, prompt.request.session)
            self._lineages += 1
        else:
            lineage = parent.lineage
        lineage.length += 1
        entry = Entry(prompt, lineage)
        self._remember(entry)
        if parent is None:
            self._starts = [*self._starts[-_RECENT + 1 :], entry]
        return entry

    def _remember(self, entry: Entry) -> None:
        prompt = entry.prompt
        chain = _root(prompt)
        holder: Entry | None = None
        parted = False
        for i, unit in enumerate(prompt.units):
            before, chain = chain, hash((chain, unit.digest))
            known = self._chains.get(chain)
            if known is None and not parted:
                parted = True
                self._branch(before, i, holder, entry)
            holder = known
            self._chains[chain] = entry
        talk = 0
        for unit in prompt.conversation:
            talk = hash((talk, unit.digest))
            self._talks[prompt.request.session, talk] = entry
        self._recent[id(entry)] = entry
        self._chars += prompt.total_chars
        of_session = self._by_session.setdefault(prompt.request.session, [])
        of_session.append(entry)
        del of_session[:-_RECENT]
        self._evict()

    def _branch(self, chain: int, unit: int, holder: Entry | None, entry: Entry) -> None:
        """Note that an entry's unit leaves all that was seen behind this chain; `holder` went on there before."""
        branches = self._branches.setdefault(chain, {})
        for known in (holder, entry):
            if known is not None and unit < len(known.prompt.units):
                branches[known.prompt.units[unit].digest] = weakref.ref(known)
        if len(branches) > _BRANCHES:
            del branches[next(iter(branches))]
        self._branches.move_to_end(chain)
        if len(self._branches) > _BRANCH_LIMIT:
            self._branches.popitem(last=False)

    def _evict(self) -> None:
        while len(self._recent) > self._kept_entries or (
            self._chars > self._kept_chars and len(self._recent) > _RECENT
        ):
            _, entry = self._recent.popitem(last=False)
            self._chars -= entry.prompt.total_chars
            self._unchain(entry)
            kept = self._by_session.get(entry.prompt.request.session, [])
            if entry in kept:
                kept.remove(entry)
            if not kept:
                self._by_session.pop(entry.prompt.request.session, None)
        while len(self._chains) > _CHAIN_LIMIT:
            self._chains.popitem(last=False)
        while len(self._talks) > _CHAIN_LIMIT:
            self._talks.popitem(last=False)

    def _unchain(self, entry: Entry) -> None:
        """Let go of what only this entry was the latest to have; nothing else may keep its text in memory."""
        chain = _root(entry.prompt)
        for unit in entry.prompt.units:
            chain = hash((chain, unit.digest))
            if self._chains.get(chain) is entry:
                del self._chains[chain]
        talk = 0
        for unit in entry.prompt.conversation:
            talk = hash((talk, unit.digest))
            key = entry.prompt.request.session, talk
            if self._talks.get(key) is entry:
                del self._talks[key]

    def _longest_prefix(self, prompt: Prompt) -> tuple[Entry | None, int]:
        chain, common = _root(prompt), 0
        nearest: Entry | None = None
        units = 0
        parted = chain
        for unit in prompt.units:
            chain = hash((chain, unit.digest))
            entry = self._chains.get(chain)
            if entry is None:
                break
            parted = chain
            nearest, common, units = entry, common + unit.size, units + 1
        else:
            return nearest, common
        return nearest, max(common, self._inside_unit(prompt, nearest, self._branches.get(parted, {}), units))

    @staticmethod
    def _inside_unit(prompt: Prompt, nearest: Entry | None, branches: Branches, units: int) -> int:
        """Common characters up to and inside the unit where the chains part, over the requests that parted there."""
        entries = [*(branch() for branch in branches.values()), nearest]
        return max((common_chars(entry.prompt, prompt, units) for entry in entries if entry is not None), default=0)

    def _candidates(self, prompt: Prompt, nearest: Entry | None) -> Iterator[Entry]:
        session = prompt.request.session
        own = [nearest] if nearest and nearest.prompt.request.session == session else []
        seen: set[int] = set()
        for entry in (*self._talk_candidates(prompt, session), *own, *reversed(self._by_session.get(session, []))):
            if id(entry) not in seen and entry.prompt.request.shape is prompt.request.shape:
                seen.add(id(entry))
                yield entry

    def _talk_candidates(self, prompt: Prompt, session: str | None) -> Iterator[Entry]:
        talk, found = 0, None
        for unit in prompt.conversation:
            talk = hash((talk, unit.digest))
            entry = self._talks.get((session, talk))
            if entry is None:
                break
            found = entry
        if found:
            yield found

    def _choose(self, prompt: Prompt, candidates: list[Entry]) -> Entry | None:
        """The candidate that shares most of the conversation, if it shares enough to be continued."""
        scored = [(*_overlap(prompt, entry), _extends(prompt, entry), -i, entry) for i, entry in enumerate(candidates)]
        talk, rest, _, _, best = max(scored, key=lambda s: s[:4])
        if not prompt.conversation or (talk > 0 and _same_agent(prompt, best.prompt)):
            return self._own(prompt, best, candidates)
        if talk > 0:
            return None
        if prompt.request.shape in (ApiShape.TEXT, ApiShape.TOKENS):
            return self._alike_text(prompt, candidates)
        by_lines = max(candidates, key=lambda entry: _line_overlap(prompt, entry))
        restart = self._restarted(prompt, candidates)
        if restart:
            return restart
        bare = len(prompt.conversation) == len(prompt.units)
        same_kind = prompt.request.session is not None or rest > 0 or bare
        return by_lines if same_kind and _line_overlap(prompt, by_lines) >= _ALIKE else None

    @staticmethod
    def _own(prompt: Prompt, best: Entry, candidates: list[Entry]) -> Entry:
        """Two agents may read one conversation: a request that this one extends goes before another agent's."""
        if _extends(prompt, best) or _speaks_alike(prompt, best.prompt):
            return best
        own = [entry for entry in candidates if entry.prompt.conversation and _extends(prompt, entry)]
        return max(own, key=lambda entry: len(entry.prompt.units), default=best)

    @staticmethod
    def _restarted(prompt: Prompt, candidates: list[Entry]) -> Entry | None:
        """The session's latest request, when this one begins anew from a summary under the same system text."""
        latest = candidates[-1] if len(candidates) == 1 else max(candidates, key=lambda e: e.prompt.request.index)
        if prompt.request.session is None or not SUMMARY.search(prompt.conversation[0].text[:400]):
            return None
        mine, theirs = (
            [u.digest for u in p.units if u.section is not Section.MESSAGES] for p in (prompt, latest.prompt)
        )
        return latest if mine and mine == theirs else None

    def _alike_text(self, prompt: Prompt, candidates: list[Entry]) -> Entry | None:
        best = max(candidates, key=lambda entry: _line_overlap(prompt, entry))
        return best if _line_overlap(prompt, best) >= _ALIKE else None


def _root(prompt: Prompt) -> int:
    """Caches are per model and salt."""
    body = prompt.request.body
    return hash((prompt.request.model, str(body.get("cache_salt"))))


def _overlap(prompt: Prompt, entry: Entry) -> tuple[int, int]:
    """(shared conversation characters, shared characters of tools and system text)."""
    talk = sum(map(entry.conversation_digests.get, prompt.talk_digests, repeat(0)))
    rest = sum(map(entry.digests.get, prompt.head_digests, repeat(0)))
    return talk, rest


def _same_agent(prompt: Prompt, earlier: Prompt) -> bool:
    """False when only the first message is shared and the system texts have little in common."""
    digests = {unit.digest for unit in earlier.conversation}
    return sum(unit.digest in digests for unit in prompt.conversation) >= 2 or _speaks_alike(prompt, earlier)


def _speaks_alike(prompt: Prompt, earlier: Prompt) -> bool:
    """The system texts have words in common, or one has none."""
    mine, theirs = (
        {word for unit in p.units if unit.section is Section.SYSTEM for word in unit.text.split()}
        for p in (prompt, earlier)
    )
    return not mine or not theirs or len(mine & theirs) >= 0.3 * min(len(mine), len(theirs))


def _extends(prompt: Prompt, entry: Entry) -> bool:
    old = entry.prompt.units
    return len(old) <= len(prompt.units) and all(a.digest == b.digest for a, b in zip(old, prompt.units, strict=False))


def _line_overlap(prompt: Prompt, entry: Entry) -> float:
    """Share of the earlier conversation's lines that stand in this one too."""
    if not entry.lines:
        return 0.0
    return len(entry.lines.intersection(lines_of(prompt.conversation))) / len(entry.lines)
