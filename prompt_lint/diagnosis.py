"""The library face: why one request did not reuse the one before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .breaks import Break, Scope
from .causes import Causes, Loss
from .divergence import first_divergence
from .errors import LintConfigError
from .findings import Finding
from .fleet_pass import head_of
from .pairs import Judgement, PairJudge
from .prices import DEFAULT_PRICES
from .profiles import PROFILES, CacheProfile
from .prompt import Prompt
from .rendering import ChatTemplate
from .request import Request, shape_of
from .rules.registry import judge_break
from .severity import Thresholds
from .side_call import side_call_pair

Body = dict[str, Any]


def diagnose(
    previous: Body | Request,
    current: Body | Request,
    profile: str | CacheProfile = "sessile",
    *,
    template: ChatTemplate | None = None,
    decode: Callable[[list[int]], str | None] = lambda ids: None,
    same_session: bool = True,
) -> Finding | None:
    """Name the rule, the place and the loss of a miss; None when nothing broke or no rule knows the kind.

    `previous` is the request (a body of any dialect, or rendered text as `{"prompt": …}`, or token ids as
    `{"prompt_token_ids": […]}`) that `current` could have reused. Mutates nothing. Thread-safe: it keeps no state.

    Raises: LintConfigError for an unknown profile, ValueError for something that is no request body.
    """
    chosen = _profile(profile)
    before, after = _prompt(previous, 0), _prompt(current, 1)
    scope = Scope.LINEAGE if same_session else Scope.FLEET
    side = side_call_pair(before, after) if same_session else None
    judged = side or PairJudge(template, decode=decode).judge(before, after, chosen, scope)
    if judged is None and not same_session:
        judged = _between_sessions(before, after, chosen)
    if judged is None:
        return None
    causes = Causes(Thresholds(), DEFAULT_PRICES, None, tiny_tokens=0)
    pair = (before.request.index, after.request.index)
    causes.add(judged.verdict, after, pair, judged.path, judged.char, judged.loss, 0, scope.value, judged.cap)
    return next(iter(causes.findings()), None)


def _profile(profile: str | CacheProfile) -> CacheProfile:
    if isinstance(profile, CacheProfile):
        return profile
    if profile not in PROFILES:
        raise LintConfigError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}")
    return PROFILES[profile]


def _prompt(request: Body | Request, index: int) -> Prompt:
    if isinstance(request, Request):
        return Prompt(request)
    shape = shape_of(request)
    if shape is None:
        raise ValueError(f"not a request body (found: {', '.join(list(request)[:6])})")
    return Prompt(Request(request, shape, index))


def _between_sessions(before: Prompt, after: Prompt, profile: CacheProfile) -> Judgement | None:
    place = first_divergence(before, after)
    if place is None or place.unit >= len(head_of(before)):
        return None
    brk = Break(before, after, place, Scope.FLEET, profile)
    verdict = judge_break(brk)
    return Judgement(verdict, place.path, place.char, Loss(brk.lost_tokens, after.tokens)) if verdict else None
