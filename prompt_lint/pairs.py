"""Judging two requests: the body, the rendered prompt, the tokens, the markers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from .breaks import Break, Layer, Scope
from .causes import Loss
from .divergence import Divergence, common_length, common_units, first_difference, first_divergence
from .errors import UnusableInput
from .findings import Severity
from .profiles import CacheProfile
from .prompt import CHARS_PER_TOKEN, Prompt, token_ids
from .rendering import ChatTemplate
from .request import ApiShape
from .rules import markers, parameters
from .rules.base import Verdict
from .rules.compaction import is_compaction
from .rules.registry import judge_break
from .rules.rendered import RENDERED_RULES, RenderedPair
from .rules.tokens import Decoder, DuplicateBos, RetokenisationDrift

_LEAST_SHARED_TEXT = 64
_HEAD_SHARE = 0.05
_BLOCK_SHARE = 0.2
_CARRIED_SHARE = 0.4
_EDITED_SHARE = 0.6
_MOVED_BLOCK = 200


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its place and its loss."""

    verdict: Verdict
    path: str | None
    char: int | None
    loss: Loss
    cap: Severity | None = None


@dataclass(frozen=True)
class PairJudge:
    """Judges a request against the one that it continues."""

    template: ChatTemplate | None = None
    bos_token_id: int | None = None
    decode: Decoder = lambda ids: None

    def judge(self, previous: Prompt, current: Prompt, profile: CacheProfile, scope: Scope) -> Judgement | None:
        """The first layer that differs picks the family; None when nothing broke."""
        if current.request.shape is ApiShape.TOKENS:
            return self._tokens(previous, current)
        place = first_divergence(previous, current)
        switched = self._switched(previous, current, profile) if scope is Scope.LINEAGE else None
        if switched:
            return switched
        if self.template is not None and current.request.shape is ApiShape.OPENAI_CHAT:
            found = self._rendered(previous, current, profile, place, scope)
        else:
            found = self._body(previous, current, profile, place, scope)
        return found or self._retokenised(previous, current, place)

    def _switched(self, previous: Prompt, current: Prompt, profile: CacheProfile) -> Judgement | None:
        verdict = parameters.ModelSwitch().judge(previous, current) or parameters.CacheKeyUnstable().judge(
            previous, current, profile
        )
        return Judgement(verdict, verdict.path, None, _whole_loss(previous, current)) if verdict else None

    def _body(
        self, previous: Prompt, current: Prompt, profile: CacheProfile, place: Divergence | None, scope: Scope
    ) -> Judgement | None:
        if place is None or is_branch(previous, current, place):
            return self._parameters(previous, current, profile) if scope is Scope.LINEAGE else None
        brk = Break(previous, current, place, scope, profile)
        if profile.explicit and not previous.marked:
            return None
        if current.request.shape is ApiShape.TEXT and brk.text is not None:
            return judge_text(brk)
        verdict = None if is_compaction(brk) else judge_break(brk)
        if verdict is None or (brk.costs_nothing and verdict.needs_loss):
            return None
        return Judgement(
            verdict,
            place.path,
            place.char,
            Loss(brk.lost_tokens, current.tokens),
            Severity.INFO if brk.costs_nothing else None,
        )

    def _parameters(self, previous: Prompt, current: Prompt, profile: CacheProfile) -> Judgement | None:
        if profile.explicit and not previous.marked:
            return None
        if self.template is not None:
            return None
        verdict = parameters.ParameterChange().judge(previous, current, profile)
        if not verdict:
            return None
        loss = _whole_loss(previous, current)
        if profile.explicit:
            static = markers.static_units(previous)
            kept = previous.ends[static - 1] if static else 0
            loss = Loss(max(0, previous.total_chars - kept) // CHARS_PER_TOKEN, current.tokens)
        return Judgement(verdict, verdict.path, None, loss)

    def _rendered(
        self, previous: Prompt, current: Prompt, profile: CacheProfile, place: Divergence | None, scope: Scope
    ) -> Judgement | None:
        assert self.template is not None
        try:
            pair = self._render(previous, current)
        except UnusableInput:
            return self._body(previous, current, profile, place, scope)
        lost = Loss(current.count(pair.lost), max(1, current.count(pair.now)))
        if place is not None and not is_branch(previous, current, place):
            return self._body_as_rendered(Break(previous, current, place, scope, profile, Layer.RENDERED), pair, lost)
        if place is not None and pair.char >= place.common_chars:
            return None  # the branch alone is what differs
        if pair.now.startswith(pair.was[: pair.generation_start]) and pair.char >= min(len(pair.was), len(pair.now)):
            return None
        for rule in RENDERED_RULES:
            verdict = rule.judge(pair)
            if verdict:
                return Judgement(verdict, "rendered", pair.char, lost)
        return None

    def _body_as_rendered(self, brk: Break, pair: RenderedPair, lost: Loss) -> Judgement | None:
        """The body differs: the rule comes from there, the loss from what is rendered."""
        verdict = judge_break(brk)
        if verdict is None:
            return None
        same = pair.now.startswith(pair.was[: pair.generation_start])
        if same and verdict.needs_loss:
            return None
        loss = Loss(0, lost.prompt_tokens) if same else lost
        return Judgement(verdict, brk.place.path, brk.place.char, loss, Severity.INFO if same else None)

    def _render(self, previous: Prompt, current: Prompt) -> RenderedPair:
        assert self.template is not None
        was, now = previous.request, current.request
        plain = self.template.of_request(was, generation_prompt=False)
        prompt = self.template.of_request(was, generation_prompt=True)
        start = common_length(plain, prompt)
        after = self.template.of_request(now, generation_prompt=True)
        no_tools = (None, None)
        if was.body.get("tools"):
            bare = [self.template.of_request(r, generation_prompt=False, with_tools=False) for r in (was, now)]
            no_tools = (bare[0], bare[1])  # type: ignore[assignment]
        response = was.response_text or ""
        return RenderedPair(prompt + response, after, start, len(prompt), *no_tools)

    def _tokens(self, previous: Prompt, current: Prompt) -> Judgement | None:
        was, now = token_ids(previous.request.body), token_ids(current.request.body)
        verdict = DuplicateBos().judge(was, now, self.bos_token_id)
        full = [*was, *(previous.request.response_token_ids or ())]
        at = first_difference(full, now)
        if at is None:
            return None
        verdict = verdict or RetokenisationDrift().judge(previous, current, at, self.decode)
        if verdict is None:
            return None
        key = "prompt_token_ids" if "prompt_token_ids" in current.request.body else "input_ids"
        char = common_length(str(full[at]), str(now[at]))
        return Judgement(verdict, f"{key}[{at}]", char, Loss(max(0, min(len(full), len(now)) - at), len(now)))

    def _retokenised(self, previous: Prompt, current: Prompt, place: Divergence | None) -> Judgement | None:
        """What was said is the same and the model was given other tokens."""
        was, now = previous.request.rendered_token_ids, current.request.rendered_token_ids
        if was is None or now is None or place is not None:
            return None
        full, now = array("i", was), array("i", now)
        full.extend(previous.request.response_token_ids or ())
        at = first_difference(full, now)
        verdict = None if at is None else RetokenisationDrift().judge_rendered(full[at:], now[at:], self.decode)
        if at is None or verdict is None:
            return None
        return Judgement(verdict, f"rendered_token_ids[{at}]", None, Loss(min(len(full), len(now)) - at, len(now)))


def judge_text(brk: Break) -> Judgement | None:
    """A plain text prompt: only what stands in both behind the place was lost."""
    assert brk.text is not None
    shared = brk.text.shared_behind
    if shared < _LEAST_SHARED_TEXT:
        return None
    was, now = brk.text.hunk
    changed = max(len(was.text), len(now.text))
    verdict = judge_break(brk)
    rest = len(brk.text.was) - was.end
    if brk.text.inserted and rest >= _MOVED_BLOCK:
        verdict = Verdict("PL306", "a block at the end of the prompt moves down with each turn")
    elif verdict is not None and verdict.rule == "PL401" and (brk.place.char == 0 or shared < _EDITED_SHARE * rest):
        verdict = None
    if brk.place.char < _HEAD_SHARE * len(brk.text.was) and changed > _BLOCK_SHARE * len(brk.text.now):
        verdict = None
        if shared >= _CARRIED_SHARE * len(brk.text.was):
            message = "another role's prompt carries the conversation behind its own text and shares no prefix with it"
            verdict = Verdict("PL406", message, cap=Severity.WARNING)
    if verdict is None:
        return None
    lost = brk.current.count(brk.text.undone)
    return Judgement(verdict, brk.place.path, brk.place.char, Loss(lost, brk.current.tokens))


def _whole_loss(previous: Prompt, current: Prompt) -> Loss:
    return Loss(current.measure(0, min(previous.total_chars, current.total_chars)), current.tokens)


def is_branch(previous: Prompt, current: Prompt, place: Divergence) -> bool:
    """A rollback, a retry or another newest message: all that could be reused is reused."""
    last = len(previous.units) - 1
    if place.unit < last or previous.request.shape is ApiShape.TEXT:
        return False
    return len(current.units) <= len(previous.units)


__all__ = ["Judgement", "PairJudge", "common_units", "is_branch"]
