"""The numbers of a run, from its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from .cost import Cost, Price, cost_of
from .percentile import Estimate, Percentiles, mean_of, percentiles
from .prefill_fit import PrefillFit, reused_share
from .records import RepeatRecord, SessionRecord, TurnRecord, TurnStatus
from .slo import Slo


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Turns by what became of them, in all repeats. ``retries`` of turns; ``tasks``: sessions that were done whole."""

    ok: int
    failed: int
    skipped: int
    interrupted: int
    retries: int
    tasks: int
    tasks_failed: int


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all good turns. None: the server does not say.

    ``reusable``: of the prompts, what earlier prompts and answers of the run began with (from their characters).
    ``output_pieces``: of ``output``, pieces that are counted as tokens, where the server does not say what they hold.
    """

    prompt: int | None
    output: int
    cached: int | None
    computed: int | None
    reusable: int | None
    by_source: dict[str, int]
    drafted: int
    accepted: int
    output_pieces: int = 0


class HitRates(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the prompts' tokens. ``server``: as it says; ``reusable``: what a perfect cache would have had;
    ``by_time``: what the times to the first token allow for (a lower bound under load)."""

    server: float | None
    reusable: float | None
    by_time: float | None


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Turns within the bounds; a task is good when all its turns are."""

    slo: Slo
    share: Estimate
    turns_per_s: Estimate
    tasks_share: Estimate
    output_tokens_per_s: Estimate


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and tokens a second. Rates are over the wall time of a repeat."""

    counts: Counts
    wall_s: Estimate
    ttft_first_s: Percentiles | None
    ttft_later_s: Percentiles | None
    itl_s: Percentiles | None
    tpot_s: Percentiles | None
    e2e_s: Percentiles | None
    task_s: Percentiles | None
    input_tokens_per_s: Estimate | None
    output_tokens_per_s: Estimate
    turns_per_s: Estimate
    tokens: Tokens
    hit_rates: HitRates
    goodput: Goodput | None = None
    cost: Cost | None = None
    errors: dict[str, int] = {}


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants judged beside what was measured."""

    slo: Slo | None = None
    price: Price | None = None
    prefill: PrefillFit | None = None


def summarise(
    turns: Sequence[TurnRecord],
    sessions: Sequence[SessionRecord],
    repeats: Sequence[RepeatRecord],
    judgement: Judgement = Judgement(),  # noqa: B008 - frozen
) -> Summary:
    """The numbers of all whole repeats; of what there is, when none is whole. Counts and errors are of everything."""
    whole = [repeat for repeat in repeats if repeat.complete]
    walls = {repeat.repeat: repeat.wall_s for repeat in whole or repeats if repeat.wall_s > 0}
    good = [turn for turn in turns if turn.status is TurnStatus.OK and turn.repeat in walls]
    by_repeat = [[turn for turn in good if turn.repeat == repeat] for repeat in walls]
    tokens = _tokens(good)
    tasks = [session for session in sessions if session.ok and session.repeat in walls]

    def spread(
        value: Callable[[TurnRecord], float | None], wanted: Callable[[TurnRecord], bool] = bool
    ) -> Percentiles | None:
        return percentiles(
            [[v for turn in some if wanted(turn) and (v := value(turn)) is not None] for some in by_repeat]
        )

    def rate(amount: Callable[[TurnRecord], float]) -> Estimate:
        found = [sum(map(amount, some)) / wall for some, wall in zip(by_repeat, walls.values(), strict=True)]
        return mean_of(found) if found else Estimate(0.0)

    return Summary(
        counts=_counts(turns, sessions),
        wall_s=mean_of(list(walls.values())) if walls else Estimate(0.0),
        ttft_first_s=spread(lambda turn: turn.ttft_s, lambda turn: turn.first),
        ttft_later_s=spread(lambda turn: turn.ttft_s, lambda turn: not turn.first),
        itl_s=percentiles([[gap for turn in some for gap in turn.gaps_s] for some in by_repeat]),
        tpot_s=spread(lambda turn: turn.tpot_s),
        e2e_s=spread(lambda turn: turn.e2e_s),
        task_s=percentiles([[task.task_s for task in tasks if task.repeat == repeat] for repeat in walls]),
        input_tokens_per_s=None if tokens.prompt is None else rate(lambda turn: turn.prompt_tokens or 0),
        output_tokens_per_s=rate(lambda turn: turn.output_tokens),
        turns_per_s=rate(lambda turn: 1),
        tokens=tokens,
        hit_rates=_hit_rates(good, tokens, judgement.prefill),
        goodput=None if judgement.slo is None else _goodput(turns, walls, judgement.slo),
        cost=_cost(judgement.price, tokens, sum(walls.values()), len(tasks)),
        errors=_errors(turns),
    )


def _counts(turns: Sequence[TurnRecord], sessions: Sequence[SessionRecord]) -> Counts:
    def number(*statuses: TurnStatus) -> int:
        return sum(1 for turn in turns if turn.status in statuses)

    return Counts(
        ok=number(TurnStatus.OK),
        failed=number(TurnStatus.ERROR, TurnStatus.UNREACHABLE),
        skipped=number(TurnStatus.SKIPPED),
        interrupted=number(TurnStatus.INTERRUPTED),
        retries=sum(turn.retries for turn in turns),
        tasks=sum(1 for session in sessions if session.ok),
        tasks_failed=sum(1 for session in sessions if not session.ok),
    )


def _tokens(good: Sequence[TurnRecord]) -> Tokens:
    says_prompt = bool(good) and all(turn.prompt_tokens is not None for turn in good)
    says_cached = says_prompt and all(turn.cached_tokens is not None for turn in good)
    prompt = sum(turn.prompt_tokens or 0 for turn in good)
    cached = sum(turn.cached_tokens or 0 for turn in good)
    by_source: dict[str, int] = {}
    for turn in good:
        for source, count in turn.by_source.items():
            by_source[source] = by_source.get(source, 0) + count
    reusable = sum((turn.reusable_share or 0.0) * (turn.prompt_tokens or 0) for turn in good)
    return Tokens(
        prompt=prompt if says_prompt else None,
        output=sum(turn.output_tokens for turn in good),
        cached=cached if says_cached else None,
        computed=prompt - cached if says_cached else None,
        reusable=round(reusable) if says_prompt else None,
        by_source=by_source,
        drafted=sum(turn.drafted_tokens for turn in good),
        accepted=sum(turn.accepted_tokens for turn in good),
        output_pieces=sum(turn.output_tokens for turn in good if turn.completion_tokens is None),
    )


def _hit_rates(good: Sequence[TurnRecord], tokens: Tokens, prefill: PrefillFit | None) -> HitRates:
    """By time, over the later turns alone where there are any: the first ones also wait for a new connection."""
    later = [turn for turn in good if not turn.first]
    return HitRates(
        server=None if tokens.cached is None or not tokens.prompt else tokens.cached / tokens.prompt,
        reusable=_reusable_share(good),
        by_time=None if prefill is None else reused_share(later or good, prefill),
    )


def _reusable_share(good: Sequence[TurnRecord]) -> float | None:
    """By tokens where the server says them, else every prompt counts alike."""
    weights = [(turn.prompt_tokens or 1, turn.reusable_share) for turn in good if turn.reusable_share is not None]
    total = sum(weight for weight, _ in weights)
    return sum(weight * share for weight, share in weights if share is not None) / total if total else None


def _goodput(turns: Sequence[TurnRecord], walls: dict[int, float], slo: Slo) -> Goodput:
    shares, rates, tokens, task_shares = [], [], [], []
    for repeat, wall in walls.items():
        tried = [turn for turn in turns if turn.repeat == repeat and turn.status is not TurnStatus.SKIPPED]
        met = [turn for turn in tried if slo.met_by(turn)]
        tasks = {turn.session for turn in tried}
        missed = {turn.session for turn in tried if not slo.met_by(turn)}
        shares.append(len(met) / len(tried) if tried else 0.0)
        rates.append(len(met) / wall)
        tokens.append(sum(turn.output_tokens for turn in met) / wall)
        task_shares.append(1 - len(missed) / len(tasks) if tasks else 0.0)
    if not shares:
        nothing = Estimate(0.0)
        return Goodput(slo=slo, share=nothing, turns_per_s=nothing, tasks_share=nothing, output_tokens_per_s=nothing)
    return Goodput(
        slo=slo,
        share=mean_of(shares),
        turns_per_s=mean_of(rates),
        tasks_share=mean_of(task_shares),
        output_tokens_per_s=mean_of(tokens),
    )


def _cost(price: Price | None, tokens: Tokens, wall_s: float, tasks: int) -> Cost | None:
    if price is None or (tokens.prompt is None and price.machine_hour is None):
        return None
    return cost_of(
        price, wall_s=wall_s, tasks=tasks, prompt=tokens.prompt or 0, cached=tokens.cached or 0, output=tokens.output
    )


def _errors(turns: Sequence[TurnRecord]) -> dict[str, int]:
    """The commonest texts of errors, the first ten."""
    found: dict[str, int] = {}
    for turn in turns:
        if turn.error is not None and turn.status is not TurnStatus.SKIPPED:
            found[turn.error[:200]] = found.get(turn.error[:200], 0) + 1
    return dict(sorted(found.items(), key=lambda entry: -entry[1])[:10])
