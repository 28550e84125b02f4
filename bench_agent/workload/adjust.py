"""What a user may change in a workload before it is sent. The changed workload has a hash of its own."""

from __future__ import annotations

import random

import msgspec

from .distributions import Distribution
from .plan import BlocksPrompt, Message, MessagesPrompt, Prompt, SessionPlan, TextPrompt, Turn, Workload
from .text import estimated_tokens, made_up_text


class Adjustments(msgspec.Struct, frozen=True, kw_only=True):
    """None or 0: as it is in the trace.

    ``scale`` multiplies the tokens of hash-id prompts (by making their blocks smaller: what is shared stays shared)
    and all answers. ``max_context``: a turn whose prompt and answer are estimated to be longer is left out, with all
    turns that build on it. ``gap`` replaces the trace's gaps. ``fill_unrecorded`` puts a made-up system prompt where
    the trace lacks the real one.
    """

    max_sessions: int | None = None
    max_turns: int | None = None
    max_context: int | None = None
    max_output_tokens: int | None = None
    output_tokens: int | None = None
    scale: float = 1.0
    gap: Distribution | None = None
    gap_cap_s: float | None = None
    fill_unrecorded: bool = False
    seed: int = 0


def adjust(workload: Workload, changes: Adjustments) -> Workload:
    """The workload with the changes; ``notes`` says what was left out."""
    sessions = workload.sessions[: changes.max_sessions]
    changed: list[SessionPlan] = []
    left_out = 0
    for number, session in enumerate(sessions):
        plan = _fill(session) if changes.fill_unrecorded else session
        turns = tuple(_change(turn, changes, random.Random(f"gap/{changes.seed}/{number}/{i}"))
                      for i, turn in enumerate(plan.turns))  # fmt: skip
        kept = _kept(turns, changes)
        left_out += len(turns) - len(kept)
        if kept:
            changed.append(msgspec.structs.replace(plan, turns=without_the_rest(turns, kept)))
    notes = workload.notes
    if left_out:
        notes = (*notes, f"{left_out} turns left out: over the context, or over the bound on turns")
    return msgspec.structs.replace(workload, sessions=tuple(changed), notes=notes)


def without_the_rest(turns: tuple[Turn, ...], kept: list[int]) -> tuple[Turn, ...]:
    """Only the kept turns, renumbered. A kept turn that came after one left out comes after what that came after."""
    place = {old: new for new, old in enumerate(kept)}

    def resolved(after: tuple[int, ...]) -> tuple[int, ...]:
        found: set[int] = set()
        for old in after:
            found.update((place[old],) if old in place else resolved(turns[old].after))
        return tuple(sorted(found))

    return tuple(
        msgspec.structs.replace(
            turns[old],
            after=resolved(turns[old].after),
            continues=None if turns[old].continues is None else place[turns[old].continues],  # type: ignore[index]
        )
        for old in kept
    )


def estimated_prompt_tokens(turns: tuple[Turn, ...]) -> list[int]:
    """About how many tokens the prompt of each turn has, with the answers before it."""
    lengths: list[int] = []
    for turn in turns:
        own = _own_tokens(turn.prompt)
        if turn.continues is not None:
            before = turns[turn.continues]
            own += lengths[turn.continues] + _answer_tokens(before)
        lengths.append(own)
    return lengths


def _answer_tokens(turn: Turn) -> int:
    if turn.output_tokens is not None:
        return turn.output_tokens
    return estimated_tokens(turn.recorded.content) if turn.recorded else 0


def _own_tokens(prompt: Prompt) -> int:
    match prompt:
        case BlocksPrompt():
            return prompt.num_tokens
        case TextPrompt():
            return estimated_tokens(prompt.text)
        case MessagesPrompt():
            return sum(estimated_tokens(message.content) + 8 for message in prompt.messages)


def _change(turn: Turn, changes: Adjustments, rng: random.Random) -> Turn:
    output = changes.output_tokens or turn.output_tokens
    if output is not None:
        output = max(1, round(output * changes.scale))
        output = min(output, changes.max_output_tokens or output)
    gap = turn.gap_s if changes.gap is None or not turn.after else round(changes.gap.sample(rng), 4)
    if changes.gap_cap_s is not None:
        gap = min(gap, changes.gap_cap_s)
    prompt = turn.prompt
    if isinstance(prompt, BlocksPrompt) and changes.scale != 1.0:
        block = max(1, round(prompt.block_tokens * changes.scale))
        tokens = max(1, round(prompt.num_tokens * block / prompt.block_tokens))
        prompt = msgspec.structs.replace(prompt, block_tokens=block, num_tokens=tokens)
    return msgspec.structs.replace(turn, output_tokens=output, gap_s=gap, prompt=prompt)


def _kept(turns: tuple[Turn, ...], changes: Adjustments) -> list[int]:
    lengths = estimated_prompt_tokens(turns)
    kept: list[int] = []
    for index, turn in enumerate(turns):
        total = lengths[index] + _answer_tokens(turn)
        fits = changes.max_context is None or total <= changes.max_context
        rooted = turn.continues is None or turn.continues in kept
        if fits and rooted and (changes.max_turns is None or len(kept) < changes.max_turns):
            kept.append(index)
    return kept


def _fill(session: SessionPlan) -> SessionPlan:
    """A system prompt of the unrecorded size before each first message; equal sizes get equal texts."""
    if not session.unrecorded_tokens:
        return session
    rng = random.Random("unrecorded")
    system = Message("system", "You are an agent." + made_up_text(rng, session.unrecorded_tokens))
    turns = tuple(
        msgspec.structs.replace(turn, prompt=MessagesPrompt((system, *turn.prompt.messages)))
        if turn.continues is None and isinstance(turn.prompt, MessagesPrompt)
        else turn
        for turn in session.turns
    )
    return msgspec.structs.replace(session, turns=turns, unrecorded_tokens=0)
