"""The trace linter: requests in, findings out, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from .breaks import Break, Scope, scope_between
from .causes import Causes, Loss
from .divergence import common_units, first_divergence
from .errors import UnusableInput
from .findings import Finding, Severity
from .fixes.trace import Repair
from .fleet_pass import fleet_break
from .lineage import Entry, LineageIndex, Match
from .pairs import Judgement, PairJudge
from .prices import DEFAULT_PRICES, Prices
from .profiles import PROFILES, CacheProfile, profile_of
from .prompt import Prompt, TokenCounter, token_ids
from .rendering import ChatTemplate
from .request import ApiShape, Request
from .reuse import estimated_reuse
from .rules import markers
from .rules.base import Verdict
from .rules.compaction import is_compaction
from .rules.tokens import DuplicateBos
from .serving import ServingJudge
from .severity import Thresholds
from .side_call import side_call
from .strips import StripRecorder
from .writes import BlockStraddles, UnreadWrites


@dataclass(frozen=True)
class TraceOptions:
    """What a user may set for traces. `prefill_rate` is in tokens a second."""

    profile: str | None = None
    template: ChatTemplate | None = None
    decode: Callable[[list[int]], str | None] = lambda ids: None
    count: Callable[[str], int] | None = None  # tokens of a text, where a tokenizer is given
    bos_token_id: int | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    prices: Prices = DEFAULT_PRICES
    prefill_rate: float | None = None
    kv_tokens: int | None = None  # how many tokens the server's cache holds, where known
    extra_rules: frozenset[str] = frozenset()  # rules that are off by default


@dataclass
class TraceSummary:
    """Totals over a trace. Tokens are measured where usage was recorded, else estimated from characters."""

    requests: int = 0
    lineages: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    lost_tokens: int = 0
    measured_prompt_tokens: int = 0
    measured_cached_tokens: int = 0


class TraceLinter:
    """Feed it requests in the order in which they were sent; ask for the findings at the end."""

    def __init__(self, options: TraceOptions | None = None, *, repair: bool = False) -> None:
        self._options = options or TraceOptions()
        self._index = LineageIndex()
        self._counter = TokenCounter(self._options.count) if self._options.count else None
        self._judge = PairJudge(self._options.template, self._options.bos_token_id, self._options.decode)
        self._causes = Causes(self._options.thresholds, self._options.prices, self._options.prefill_rate)
        self._serving = ServingJudge(self._options.kv_tokens)
        self._writes = UnreadWrites()
        self._straddles = BlockStraddles()
        self._extra: list[Finding] = []
        self._double_start: Prompt | None = None
        self.summary = TraceSummary()
        self.strips = StripRecorder()
        self.repair = Repair() if repair else None
        self._judged: Judgement | None = None

    def feed_all(self, requests: Iterable[Request]) -> list[Finding]:
        """Feed every request and return the findings."""
        for request in requests:
            self.feed(request)
        return self.findings()

    def feed(self, request: Request) -> None:
        """Judge one request against what was seen.

        Raises: UnusableInput when its JSON is nested too deeply to be compared.
        """
        try:
            self._judge_request(request)
        except RecursionError as error:
            raise UnusableInput(f"request {request.index}", "its JSON is nested too deeply") from error

    def _judge_request(self, request: Request) -> None:
        prompt = Prompt(request, self._counter)
        profile = self._profile(request)
        match = self._index.find(prompt)
        parent = match.parent
        if parent is not None and _is_other_item(parent.prompt, prompt):
            parent = None
        self._judged = None
        side = self._side_call(prompt, match)
        if side is not None:
            parent = None
        self._single(prompt, profile)
        explained = False
        if parent is not None:
            explained = self._pair(parent, prompt, profile, match)
        elif side is None:
            self._fleet(prompt, profile, match)
        if self.repair:
            previous = parent.prompt if parent else None
            self.repair.note(prompt, previous, self._judged, match.cached_chars, profile)
        entry = self._index.add(prompt, parent)
        self._count(prompt, profile, match, parent)
        self._writes.note(entry, match, parent, profile)
        self._straddles.note(entry, match, parent, profile)
        for verdict, loss, place in self._serving.judge(entry, parent, match, profile, explained or side is not None):
            pair = (parent.prompt.request.index, request.index) if parent else None
            self._causes.add(verdict, prompt, pair, place, None, loss, entry.lineage.number)

    def findings(self) -> list[Finding]:
        """Everything found so far."""
        self._causes.measured_prefill_rate(self._serving.prefill_rate())
        if self._double_start is not None and not self._causes.has("PL705"):
            prompt = self._double_start
            verdict = Verdict("PL705", "the start token stands twice", needs_loss=False, floor=Severity.ERROR)
            self._causes.add(verdict, prompt, None, "prompt_token_ids[1]", 0, Loss(prompt.tokens, prompt.tokens), "bos")
        self._writes.report(self._causes)
        if "PL706" in self._options.extra_rules:
            self._straddles.report(self._causes, self._options.profile or "the cache")
        self.summary.lineages = self._index.lineages
        found = self._causes.findings() + self._extra
        self.summary.lost_tokens = sum(f.cost.tokens for f in found)
        return found

    def _profile(self, request: Request) -> CacheProfile:
        profile = PROFILES[self._options.profile] if self._options.profile else profile_of(request)
        # Where the body is not whole, its markers were not recorded either: only counts can tell.
        return profile if request.complete or not profile.explicit else replace(profile, explicit=False)

    def _side_call(self, prompt: Prompt, match: Match) -> Judgement | None:
        """A call that reads a conversation without extending it."""
        found = side_call(prompt, self._index.recent(prompt.request.session), match.cached_chars)
        if found is None:
            return None
        entry, judgement = found
        pair = (entry.prompt.request.index, prompt.request.index)
        self._causes.add(
            judgement.verdict,
            prompt,
            pair,
            judgement.path,
            judgement.char,
            judgement.loss,
            ("side", entry.lineage.number),
        )
        return judgement

    def _single(self, prompt: Prompt, profile: CacheProfile) -> None:
        """Rules that need one request only."""
        if profile.explicit:
            for verdict in (
                markers.BelowMinimum().judge(prompt, profile),
                markers.MarkerLimit().judge(prompt, profile),
            ):
                if verdict and not self._seen_single(verdict, prompt):
                    self._causes.add(verdict, prompt, None, None, None, Loss(0, prompt.tokens), prompt.request.session)
        bos = self._options.bos_token_id
        first = prompt.request.shape is ApiShape.TOKENS and bos is not None and self._double_start is None
        if first and DuplicateBos().judge_one(token_ids(prompt.request.body), bos):
            self._double_start = prompt

    def _seen_single(self, verdict: Verdict, prompt: Prompt) -> bool:
        key = (verdict.rule, prompt.request.session, prompt.request.model)
        if key in self._serving.said:
            return True
        self._serving.said.add(key)
        return False

    def _pair(self, parent: Entry, prompt: Prompt, profile: CacheProfile, match: Match) -> bool:
        """Judge a continuation; True when something explains a miss."""
        previous = parent.prompt
        pair = (previous.request.index, prompt.request.index)
        scope = scope_between(previous, prompt)
        judged = self._judged = self._judge.judge(previous, prompt, profile, scope)
        if profile.explicit:
            self._markers(parent, prompt, profile, pair)
        if judged is None:
            return self._silent_break(parent, prompt, profile)
        loss = self._honest(judged, previous, prompt, match, profile)
        if loss is None:
            return True
        self._causes.add(
            judged.verdict,
            prompt,
            pair,
            judged.path,
            judged.char,
            loss,
            parent.lineage.number,
            scope.value,
            self._measured_cap(judged, prompt),
        )
        return True

    def _honest(
        self, judged: Judgement, previous: Prompt, prompt: Prompt, match: Match, profile: CacheProfile
    ) -> Loss | None:
        """The loss against the best that any earlier request left in the cache; None when all was served."""
        if profile.explicit or judged.path == "rendered" or previous.request.shape is ApiShape.TOKENS:
            return judged.loss
        nearest = match.nearest
        if nearest is None or nearest.prompt is previous or not judged.verdict.needs_loss:
            return judged.loss
        left = previous.estimated_tokens - prompt.measure(0, match.cached_chars)
        if left <= 0:
            return None
        place = first_divergence(previous, prompt)
        served = prompt.measure(place.common_chars if place else 0, match.cached_chars)
        tokens = min(judged.loss.tokens - served, left)
        return Loss(tokens, judged.loss.prompt_tokens) if tokens > 0 else None

    @staticmethod
    def _measured_cap(judged: Judgement, prompt: Prompt) -> Severity | None:
        """What was measured outranks what was predicted: a served prefix is no error."""
        usage = prompt.request.usage
        if usage is None or usage.cached_tokens is None or not prompt.request.complete or not usage.prompt_tokens:
            return judged.cap
        served = usage.cached_tokens / usage.prompt_tokens
        predicted = 1 - judged.loss.tokens / max(1, prompt.estimated_tokens)
        return Severity.INFO if served > 0.5 and served > predicted + 0.2 else judged.cap

    def _silent_break(self, parent: Entry, prompt: Prompt, profile: CacheProfile) -> bool:
        """Breaks that no pair rule reports: compactions count towards PL407."""
        place = first_divergence(parent.prompt, prompt)
        if place is None:
            return False
        brk = Break(parent.prompt, prompt, place, Scope.LINEAGE, profile)
        if not is_compaction(brk):
            return len(prompt.units) < len(parent.prompt.units)
        verdict = self._serving.compaction(parent.lineage)
        if verdict:
            pair = (parent.prompt.request.index, prompt.request.index)
            loss = Loss(brk.lost_tokens, prompt.tokens)
            self._causes.add(verdict, prompt, pair, place.path, place.char, loss, parent.lineage.number)
        return True

    def _markers(self, parent: Entry, prompt: Prompt, profile: CacheProfile, pair: tuple[int, int]) -> None:
        previous, lineage = parent.prompt, parent.lineage
        common = common_units(previous, prompt)
        place = first_divergence(previous, prompt)
        chars = place.common_chars if place else min(previous.total_chars, prompt.total_chars)
        unmarked = markers.NoCacheBreakpoint().judge(previous, prompt, profile, chars)
        moved = markers.BreakpointMoved().judge(previous, prompt, common)
        frozen = markers.FrozenBreakpoint().judge(previous, prompt, common)
        lineage.frozen = lineage.frozen + 1 if frozen else 0
        far = markers.LookbackExceeded().judge(previous, prompt, profile, common)
        if unmarked:
            self._once(unmarked[0], prompt, pair, "cache_control", unmarked[1], lineage.number)
        if moved:
            self._causes.add(
                moved[0], prompt, pair, "cache_control", None, Loss(moved[1], prompt.tokens), lineage.number
            )
        if frozen:
            self._serving.frozen_tail(lineage, frozen[1], prompt.tokens)
            if lineage.frozen >= 2:
                self._frozen(frozen[0], prompt, pair, lineage.number)
        if far:
            path = prompt.units[prompt.marker_positions[-1][0]].path
            self._causes.add(far, prompt, pair, path, None, Loss(0, prompt.tokens), lineage.number)

    def _frozen(self, verdict: Verdict, prompt: Prompt, pair: tuple[int, int], number: int) -> None:
        for loss in self._serving.frozen.pop(number, []):
            if self._said_once(verdict, number):
                self._causes.count(verdict.rule, number, "cache_control", loss)
            else:
                self._causes.add(verdict, prompt, pair, "cache_control", None, loss, number)

    def _said_once(self, verdict: Verdict, number: int) -> bool:
        key = (verdict.rule, "lineage", number)
        seen = key in self._serving.said
        self._serving.said.add(key)
        return seen

    def _once(self, verdict: Verdict, prompt: Prompt, pair: tuple[int, int], path: str, lost: int, number: int) -> None:
        """One finding a lineage; later occurrences only add to its loss."""
        loss = Loss(lost, prompt.tokens)
        if self._said_once(verdict, number):
            self._causes.count(verdict.rule, number, path, loss)
        else:
            self._causes.add(verdict, prompt, pair, path, None, loss, number)

    def _fleet(self, prompt: Prompt, profile: CacheProfile, match: Match) -> None:
        found = fleet_break(prompt, profile, match, self._judge)
        if found is None:
            return
        entry, judged = found
        pair = (entry.prompt.request.index, prompt.request.index)
        self._causes.add(
            judged.verdict, prompt, pair, judged.path, judged.char, judged.loss, "fleet", Scope.FLEET.value, judged.cap
        )

    def _count(self, prompt: Prompt, profile: CacheProfile, match: Match, parent: Entry | None) -> None:
        summary, usage = self.summary, prompt.request.usage
        summary.requests += 1
        summary.prompt_tokens += prompt.tokens
        reused = 0 if profile.explicit else estimated_reuse(prompt, match.cached_chars, profile)
        if usage and usage.cached_tokens is not None:
            summary.measured_prompt_tokens += usage.prompt_tokens
            summary.measured_cached_tokens += usage.cached_tokens
            reused = usage.cached_tokens
        summary.reused_tokens += reused
        self.strips.record(prompt, parent, reused)


def _is_other_item(previous: Prompt, current: Prompt) -> bool:
    """Two single questions without session ids: items of a batch, of which neither continues the other."""
    if current.request.session is not None or previous.request.session is not None:
        return False
    if current.request.shape in (ApiShape.TEXT, ApiShape.TOKENS):
        return False
    was, now = previous.conversation, current.conversation
    return len(was) == len(now) == 1 and was[0].digest != now[0].digest
