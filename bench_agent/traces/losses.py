"""What a workload has that a form of traces cannot hold."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ..workload.plan import (
    BlocksPrompt,
    Message,
    MessagesPrompt,
    SessionPlan,
    TextPrompt,
    Turn,
    Workload,
    over_before,
)


class Trait(enum.Enum):
    """What may be lost; the value says what becomes of it."""

    LINKS = "turns that continue another (each is written as a whole prompt)"
    FORKS = "turns that go back or start anew within their session"
    OVERLAPS = "turns of the main agent that run beside others (but for what their times show)"
    SUB_OVERLAPS = "turns of sub-agents that run beside others (but for what their times show)"
    AGENTS = "turns of sub-agents, by name"
    GAPS = "gaps between turns"
    ARRIVALS = "arrivals of sessions"
    LENGTHS = "lengths of answers (some follow from the answers' texts)"
    ANSWERS = "recorded answers"
    UNANSWERED = "answers that were not recorded and that others go on from (each becomes an empty or made-up one)"
    CALLS = "tool calls and results as such"
    TOOLS = "lists of tools"
    TEXTS = "prompts as text (their sizes, and what they share in whole blocks, are kept)"
    PLAIN = "prompts without a chat template (each becomes a message of the user)"
    BLOCKS = "prompts as ids of blocks (each is written with its made-up text)"
    UNDER_64 = "prompts in blocks of less than 64 tokens (what they share is kept in whole blocks of 64)"
    UNDER_512 = "prompts in blocks of less than 512 tokens (what they share is kept in whole blocks of 512)"
    UNRECORDED = "sizes of unrecorded system prompts"


ALL = frozenset(Trait)


def has(workload: Workload, trait: Trait) -> int:
    """How many of a trait a workload has."""
    return sum(_COUNTS[trait](session) for session in workload.sessions)


def losses(workload: Workload, keeps: frozenset[Trait]) -> tuple[str, ...]:
    """What a form that keeps only so much loses of a workload, in sentences; none: nothing is lost."""
    counts = {trait: has(workload, trait) for trait in Trait if trait not in keeps}
    if counts.get(Trait.LINKS):  # whole prompts need no forks
        counts.pop(Trait.FORKS, None)
    return tuple(f"lost: {count} {trait.value}" for trait, count in counts.items() if count)


def fewer(before: Workload, after: Workload, keeps: frozenset[Trait]) -> tuple[str, ...]:
    """What a form can hold, and this workload lost in it all the same: sub-agents that wait for each other, say."""
    counted = {Trait.AGENTS, Trait.OVERLAPS, Trait.SUB_OVERLAPS} & keeps
    missing = {trait: has(before, trait) - has(after, trait) for trait in Trait if trait in counted}
    return tuple(f"lost: {count} {trait.value}" for trait, count in missing.items() if count > 0)


def _turns(session: SessionPlan, holds: Callable[[Turn], bool]) -> int:
    return sum(1 for turn in session.turns if holds(turn))


def _forks(session: SessionPlan) -> int:
    """Turns that begin anew but for the first, and those that continue what another continues already."""
    talks = [turn.continues for turn in session.turns if isinstance(turn.prompt, MessagesPrompt)]
    return len(talks) - len(set(talks))


def _overlaps(session: SessionPlan) -> Iterator[Turn]:
    """Turns beside which another may run: it is over neither before them nor after them."""
    before = over_before(session)
    later = [0] * len(before)
    for index in reversed(range(len(before))):
        for other in session.turns[index].after:
            later[other] |= later[index] | 1 << index
    for turn, over, waits in zip(session.turns, before, later, strict=True):
        if over.bit_count() + waits.bit_count() < len(before) - 1:
            yield turn


def _in_blocks_under(session: SessionPlan, size: int) -> int:
    return _turns(session, lambda turn: isinstance(turn.prompt, BlocksPrompt) and turn.prompt.block_tokens < size)


def _unanswered(session: SessionPlan) -> int:
    continued = {turn.continues for turn in session.turns}
    return sum(1 for index, turn in enumerate(session.turns) if turn.recorded is None and index in continued)


def _messages(session: SessionPlan, holds: Callable[[Message], bool]) -> int:
    count = 0
    for turn in session.turns:
        new = turn.prompt.messages if isinstance(turn.prompt, MessagesPrompt) else ()
        said = new if turn.recorded is None else (*new, turn.recorded)
        count += sum(1 for message in said if holds(message))
    return count


_COUNTS: Mapping[Trait, Callable[[SessionPlan], int]] = MappingProxyType(
    {
        Trait.LINKS: lambda session: _turns(session, lambda turn: turn.continues is not None),
        Trait.FORKS: _forks,
        Trait.OVERLAPS: lambda session: sum(turn.agent == "main" for turn in _overlaps(session)),
        Trait.SUB_OVERLAPS: lambda session: sum(turn.agent != "main" for turn in _overlaps(session)),
        Trait.AGENTS: lambda session: _turns(session, lambda turn: turn.agent != "main"),
        Trait.GAPS: lambda session: _turns(session, lambda turn: turn.gap_s > 0),
        Trait.ARRIVALS: lambda session: int(session.arrival_s > 0),
        Trait.LENGTHS: lambda session: _turns(session, lambda turn: turn.output_tokens is not None),
        Trait.ANSWERS: lambda session: _turns(session, lambda turn: turn.recorded is not None),
        Trait.UNANSWERED: _unanswered,
        Trait.CALLS: lambda session: _messages(session, lambda one: one.role == "tool" or bool(one.tool_calls)),
        Trait.TOOLS: lambda session: int(bool(session.tools)),
        Trait.TEXTS: lambda session: _turns(session, lambda turn: not isinstance(turn.prompt, BlocksPrompt)),
        Trait.PLAIN: lambda session: _turns(session, lambda turn: isinstance(turn.prompt, TextPrompt)),
        Trait.BLOCKS: lambda session: _turns(session, lambda turn: isinstance(turn.prompt, BlocksPrompt)),
        Trait.UNDER_64: lambda session: _in_blocks_under(session, 64),
        Trait.UNDER_512: lambda session: _in_blocks_under(session, 512),
        Trait.UNRECORDED: lambda session: int(session.unrecorded_tokens > 0),
    }
)
