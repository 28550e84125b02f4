"""The rules over breaks, most specific first. A rule is added here, in the catalogue, and with cases."""

from __future__ import annotations

from ..breaks import Break
from ..text_change import TextChange
from . import drift, examples, fleet, history, retrieved, tools, volatile
from .base import BreakRule, Verdict

_RESUMED = 5
_SHAPE: tuple[BreakRule, ...] = (
    tools.ToolOrder(),
    tools.ToolSetChanged(),
    drift.ParallelResultOrder(),
    drift.RegeneratedId(),
    drift.JsonKeyOrder(),
    drift.ReserialisedJson(),
    drift.ContentShapeDrift(),
    drift.WhitespaceDrift(),
    drift.UnicodeDrift(),
)
_BLOCKS: tuple[BreakRule, ...] = (
    history.DuplicatedMessage(),
    history.ReasoningDropped(),
    history.MovingInsert(),
    history.EphemeralInjection(),
    history.HeadTruncation(),
    history.ToolResultCleared(),
    examples.ResampledExamples(),
    drift.ListingOrder(),
)
_SCALARS: tuple[BreakRule, ...] = (
    volatile.SignedUrl(),
    volatile.TransportHeader(),
    volatile.Timestamp(),
    volatile.Date(),
    volatile.VolatileId(),
    volatile.Counter(),
)
_LABELLED: tuple[BreakRule, ...] = (
    retrieved.MemoryInPrefix(),
    retrieved.RetrievedEarly(),
    volatile.EnvironmentSnapshot(),
)
_REST: tuple[BreakRule, ...] = (
    fleet.PerUserBeforeStatic(),
    fleet.VariantAtHead(),
    fleet.DynamicBeforeStatic(),
    history.HoistedSystemMessage(),
    tools.ToolSchemaDrift(),
    history.EditedHistory(),
)
BREAK_RULES: tuple[BreakRule, ...] = (*_SHAPE, *_BLOCKS, *_SCALARS, *_LABELLED, *_REST)


def judge_break(brk: Break) -> Verdict | None:
    """The verdict of the most specific rule that knows the break's kind."""
    if brk.text is not None and brk.text.in_blob:
        return next((verdict for rule in (*_SHAPE, *_BLOCKS, *_REST) if (verdict := rule.judge(brk))), None)
    large = brk.text is not None and _is_block(brk.text)
    order = (*_SHAPE, *_BLOCKS, *_LABELLED, *_SCALARS, *_REST) if large else BREAK_RULES
    for rule in order:
        verdict = rule.judge(brk)
        if verdict and not (large and rule in _SCALARS and not _resumes(brk, verdict)):
            return verdict
    return None


def _resumes(brk: Break, verdict: Verdict) -> bool:
    """In a large change a value counts only when both texts go on alike behind it."""
    change = brk.text
    if change is None or verdict.was is None or verdict.now is None:
        return True
    at = change.position
    ends = []
    for text, value in ((change.was, verdict.was), (change.now, verdict.now)):
        start = text.find(value, max(0, at - len(value)), at + len(value))
        ends.append(text[start + len(value) : start + len(value) + _RESUMED])
    return ends[0] == ends[1]


def _is_block(change: TextChange) -> bool:
    """The change is more than a value on a line: several words or lines were exchanged."""
    was, now = change.hunk
    words = max(len(was.text.split()), len(now.text.split()))
    return words > 6 or "\n" in was.text.strip() or "\n" in now.text.strip()
