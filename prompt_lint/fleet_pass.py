"""Text that many sessions could share: a new session's head against those of earlier sessions."""

from __future__ import annotations

from collections.abc import Iterator

from .breaks import Break, Scope
from .causes import Loss
from .divergence import first_divergence
from .lineage import Entry, Match
from .pairs import Judgement, PairJudge
from .profiles import CacheProfile
from .prompt import Prompt, Section, Unit
from .request import ApiShape
from .rules.registry import judge_break

_LEAST_SHARED = 256
_LEAST_SHARE = 0.02
_ALIKE = 0.3


def head_of(prompt: Prompt) -> list[Unit]:
    """Tools, system text and the first message: what sessions of one application have in common."""
    if prompt.request.shape is ApiShape.TEXT:
        return prompt.units
    static = [unit for unit in prompt.units if unit.section is not Section.MESSAGES]
    return prompt.units[: len(static) + 1]


def fleet_break(
    prompt: Prompt, profile: CacheProfile, match: Match, judge: PairJudge
) -> tuple[Entry, Judgement] | None:
    """The nearest earlier session whose head this one could have shared, and the verdict."""
    entry = _nearest(prompt, match.neighbours)
    if entry is None:
        return None
    if prompt.request.shape is ApiShape.TOKENS:
        judged = judge.judge(entry.prompt, prompt, profile, Scope.FLEET)
        return (entry, judged) if judged and judged.verdict.rule == "PL705" else None
    place = first_divergence(entry.prompt, prompt)
    if place is None or (place.unit >= len(head_of(entry.prompt)) and prompt.request.shape is not ApiShape.TEXT):
        return None
    brk = Break(entry.prompt, prompt, place, Scope.FLEET, profile)
    pieces = list(_shared_pieces(brk))
    shared = sum(map(len, pieces))
    if brk.costs_nothing or shared < max(_LEAST_SHARED, _LEAST_SHARE * prompt.total_chars):
        return None
    if match.cached_chars >= place.common_chars + 0.9 * shared:
        return None
    verdict = judge_break(brk)
    if verdict is None or verdict.rule in ("PL501", "PL502"):
        return None
    served = prompt.measure(place.common_chars, match.cached_chars)
    lost = min(brk.lost_tokens, prompt.count("".join(pieces)) - served)
    return entry, Judgement(verdict, place.path, place.char, Loss(max(0, lost), prompt.tokens))


def _shared_pieces(brk: Break) -> Iterator[str]:
    """What both heads hold behind the place: it could have stood first."""
    if brk.text is not None:
        yield brk.text.shared_text
        yield from _rest_of_unit(brk)
    elif brk.was_unit is not None and brk.now_unit is not None:
        yield from _shared_lines(brk)
    if brk.current.request.shape is ApiShape.TEXT:
        return
    was, now = head_of(brk.previous)[brk.place.unit + 1 :], head_of(brk.current)[brk.place.unit + 1 :]
    digests = {unit.digest for unit in was}
    yield from (leaf.text for unit in now if unit.digest in digests for leaf in unit.leaves())


def _rest_of_unit(brk: Break) -> Iterator[str]:
    """The part of the differing unit (a tool, say) that follows the differing leaf."""
    if brk.was_unit is None or brk.section is not Section.TOOLS:
        return
    leaves = brk.was_unit.leaves()
    at = next((i for i, leaf in enumerate(leaves) if leaf.path == brk.place.path), len(leaves))
    yield from (leaf.text for leaf in leaves[at + 1 :])


def _shared_lines(brk: Break) -> Iterator[str]:
    assert brk.was_unit is not None
    assert brk.now_unit is not None
    old = set(brk.was_unit.text.split("\n"))
    yield from (line for line in brk.now_unit.text.split("\n") if line in old)


def _nearest(prompt: Prompt, starts: tuple[Entry, ...]) -> Entry | None:
    """The latest of the earlier sessions whose head is about as alike as the most alike one."""
    if prompt.request.shape is ApiShape.TOKENS:
        return starts[-1] if starts else None
    mine = _lines(prompt)
    total = sum(mine.values()) or 1
    best, best_share = None, _ALIKE
    for entry in reversed(starts):
        if entry.prompt.request.shape is not prompt.request.shape or entry.prompt.request.model != prompt.request.model:
            continue
        share = sum(size for line, size in mine.items() if line in entry.head_lines) / total
        if share > best_share + 0.02:
            best, best_share = entry, share
    return best


def _lines(prompt: Prompt) -> dict[int, int]:
    return {hash(line): len(line) for unit in head_of(prompt) for line in unit.text.split("\n") if len(line) >= 12}
