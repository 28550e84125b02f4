"""Codex writes a file for each agent; those that another sent are joined to its session.

A sub-agent starts after the turn of its parent that was over by then, and the first turn that its parent starts after
it has ended waits for it. Where the parent's file is not there, or the times are not told, it is a session of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..workload.plan import SessionPlan, Turn

Span = tuple[float | None, float | None]  # when what was asked was written, and when the answer was


class Rollout(msgspec.Struct, frozen=True):
    """What one file says: its session, when it began and when each turn was; ``parent``: the session that sent it."""

    plan: SessionPlan
    began_at: float | None
    spans: tuple[Span, ...]
    parent: str | None = None
    nickname: str | None = None


class _Placed(msgspec.Struct, frozen=True):
    """A turn on its way into a joined session. ``before``: the turns that it waits for, by rollout and place."""

    start: float
    end: float
    key: tuple[str, int]
    turn: Turn
    before: tuple[tuple[str, int], ...]
    continues: tuple[str, int] | None


def joined(rollouts: Sequence[Rollout]) -> list[tuple[SessionPlan, float | None]]:
    """Sessions in the order of their own files, each with the agents that it sent, and when it began."""
    by_name = {rollout.plan.session_id: rollout for rollout in rollouts}
    families: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        root = _root(rollout, by_name)
        families.setdefault(root.plan.session_id, []).append(rollout)
    return [
        (_one_session(by_name[name], family), by_name[name].began_at) if len(family) > 1 else _alone(family[0])
        for name, family in families.items()
    ]


def _alone(rollout: Rollout) -> tuple[SessionPlan, float | None]:
    return rollout.plan, rollout.began_at


def _root(rollout: Rollout, by_name: Mapping[str, Rollout]) -> Rollout:
    """The session that sent the one that sent it, and so on, as far as files and times are there."""
    seen = {rollout.plan.session_id}
    at = rollout
    while at.parent is not None and at.parent in by_name and at.parent not in seen and _is_timed(at):
        above = by_name[at.parent]
        if not _is_timed(above):
            break
        seen.add(at.parent)
        at = above
    return at


def _is_timed(rollout: Rollout) -> bool:
    return bool(rollout.spans) and all(start is not None and end is not None for start, end in rollout.spans)


def _one_session(root: Rollout, family: Sequence[Rollout]) -> SessionPlan:
    placed = sorted((turn for member in family for turn in _placed(member, family)), key=_start)
    number = {one.key: index for index, one in enumerate(placed)}
    ends = {one.key: one.end for one in placed}
    turns = []
    for index, one in enumerate(placed):
        before = [key for key in one.before if number[key] < index]
        gap = max(0.0, one.start - max((ends[key] for key in before), default=one.start))
        turns.append(
            msgspec.structs.replace(
                one.turn,
                continues=None if one.continues is None else number[one.continues],
                after=tuple(sorted({number[key] for key in before})),
                gap_s=round(gap, 6),
            )
        )
    return msgspec.structs.replace(root.plan, turns=tuple(turns))


def _placed(member: Rollout, family: Sequence[Rollout]) -> list[_Placed]:
    name = member.plan.session_id
    found: list[_Placed] = []
    for place, (turn, (start, end)) in enumerate(zip(member.plan.turns, member.spans, strict=True)):
        assert start is not None and end is not None  # _is_timed
        before = [(name, other) for other in turn.after]
        if not place:
            before += _sent_by(member, family, start)
        last = -1.0 if not place else float(member.spans[place - 1][0] or 0.0)
        before += [_last(child) for child in family if child.parent == name and last < _last_end(child) <= start]
        agent = turn.agent if member.parent is None else f"sub-{member.nickname or name[:8]}"
        continues = None if turn.continues is None else (name, turn.continues)
        turn = msgspec.structs.replace(turn, agent=agent)
        found.append(_Placed(start, max(start, end), (name, place), turn, tuple(before), continues))
    return found


def _sent_by(member: Rollout, family: Sequence[Rollout], start: float) -> list[tuple[str, int]]:
    """The latest turn of the parent that was over when the sub-agent started."""
    parent = next((one for one in family if one.plan.session_id == member.parent), None)
    over = [] if parent is None else [place for place, (_, end) in enumerate(parent.spans) if (end or 0.0) <= start]
    return [] if parent is None or not over else [(parent.plan.session_id, max(over))]


def _last(child: Rollout) -> tuple[str, int]:
    return child.plan.session_id, len(child.spans) - 1


def _last_end(child: Rollout) -> float:
    return child.spans[-1][1] or 0.0


def _start(placed: _Placed) -> tuple[float, float]:
    return placed.start, placed.end
