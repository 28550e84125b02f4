"""Percentiles, bounds, costs, reuse and the fit of prefill times, by numbers that can be checked by hand."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pytest

from sessile.bench_agent.errors import BenchError
from sessile.bench_agent.metrics import machine
from sessile.bench_agent.metrics.cost import Price, cost_of, parse_price
from sessile.bench_agent.metrics.machine import BusyMeter, git_revision, hardware
from sessile.bench_agent.metrics.percentile import mean_of, percentiles
from sessile.bench_agent.metrics.prefill_fit import fit, reused_share
from sessile.bench_agent.metrics.process_usage import ProcessMeter
from sessile.bench_agent.metrics.records import RepeatRecord, SessionRecord, TurnRecord, TurnStatus
from sessile.bench_agent.metrics.reuse import SentPrompt, reusable_shares
from sessile.bench_agent.metrics.roofline import MachineRates, limits
from sessile.bench_agent.metrics.slo import Slo, parse_slo
from sessile.bench_agent.metrics.summary import Judgement, summarise


class CpuTimes(NamedTuple):
    user: float
    idle: float


def turn(**more: object) -> TurnRecord:
    base = {
        "repeat": 0, "session": "s", "turn": 0, "started_s": 1.0, "ended_s": 1.5, "arrivals_s": (0.1, 0.2, 0.5),
        "arrived_tokens": (1, 1, 1), "prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 60,
    }  # fmt: skip
    return TurnRecord(**(base | more))


def test_a_turns_own_numbers() -> None:
    one = turn()
    assert (one.ttft_s, one.e2e_s, one.output_tokens) == (0.1, 0.5, 5)
    assert one.tpot_s == pytest.approx(0.1)
    assert one.gaps_s == pytest.approx((0.1, 0.3))
    assert turn(completion_tokens=None).output_tokens == 3
    assert turn(completion_tokens=1).tpot_s is None
    assert turn(arrivals_s=(), completion_tokens=0).ttft_s is None


def test_percentiles_of_one_repeat_are_bootstrapped() -> None:
    found = percentiles([[float(value) for value in range(1, 101)]])
    assert found is not None
    assert found.p50.value == 50.5 and found.p90.value == pytest.approx(90.1) and found.mean.value == 50.5
    assert found.p50.low is not None and found.p50.high is not None
    assert 40 < found.p50.low < 50.5 < found.p50.high < 61
    assert found.interval == "bootstrap over turns"
    assert percentiles([[], []]) is None


def test_percentiles_over_repeats_have_students_interval() -> None:
    found = percentiles([[1.0], [2.0], [3.0]])
    assert found is not None
    assert found.p50.value == 2.0
    assert found.p50.low == pytest.approx(2 - 4.303 / 3**0.5)
    assert mean_of([5.0]).low is None


def test_bounds() -> None:
    assert parse_slo("ttft=500ms, itl=50ms") == Slo(ttft=0.5, itl=0.05)
    assert str(parse_slo("tpot=0.02s,e2e=3")) == "tpot ≤ 20 ms, e2e ≤ 3000 ms"
    assert Slo(ttft=0.1).met_by(turn()) and not Slo(ttft=0.09).met_by(turn())
    assert not Slo(itl=0.2).met_by(turn()) and Slo(itl=0.31).met_by(turn())
    assert not Slo().met_by(turn(status=TurnStatus.ERROR))
    assert parse_slo("TTFT = .5S,itl=1500us,e2e=2µs") == Slo(ttft=0.5, itl=0.0015, e2e=2e-6)
    assert not Slo(ttft=9.0).met_by(turn(arrivals_s=(), arrived_tokens=()))
    for wrong in ("ttft", "speed=1s", "ttft=1..2s", "", "ttft=1s,", "ttft=-1s", "ttft=0", "itl=1,itl=2", "ttft=."):
        with pytest.raises(BenchError):
            parse_slo(wrong)


def test_costs() -> None:
    price = parse_price("in=1,cached=0.1,out=10")
    found = cost_of(price, wall_s=60, tasks=2, prompt=1_000_000, cached=500_000, output=100_000)
    assert found.total == pytest.approx(0.5 + 0.05 + 1.0)
    assert found.per_task == pytest.approx(0.775)
    hourly = cost_of(Price(machine_hour=3.6), wall_s=100, tasks=0, prompt=10, cached=0, output=1000)
    assert (hourly.total, hourly.per_task) == (pytest.approx(0.1), None)
    assert hourly.per_million_output_tokens == pytest.approx(100)
    for wrong in ("tokens=3", "", "in=-1", "in=nan", "in=inf", "in=1,in=2", "in=$1", "in"):
        with pytest.raises(BenchError):
            parse_price(wrong)


def test_pieces_that_are_counted_as_tokens_are_told_apart() -> None:
    turns = [turn(), turn(completion_tokens=None)]
    found = summarise(turns, [], [RepeatRecord(repeat=0, wall_s=1.0)])
    assert (found.tokens.output, found.tokens.output_pieces) == (8, 3)


def test_what_others_used_is_a_share_of_the_time_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 processor seconds 15 were busy, of which the server had 5; the harness none."""
    times = [CpuTimes(user=0.0, idle=0.0), CpuTimes(user=15.0, idle=5.0)]
    monkeypatch.setattr(machine.psutil, "cpu_times", lambda: times.pop(0))
    monkeypatch.setattr(machine.os, "times", lambda: os.times_result((0.0,) * 5))
    assert BusyMeter().stop(5.0).other_cpu_share == pytest.approx(0.5)


def test_a_task_costs_what_the_whole_repeats_cost() -> None:
    """Tasks of a repeat that broke off are not paid for, so they are not counted."""
    sessions = [SessionRecord(repeat=r, session="s", started_s=0, ended_s=1, turns=1, ok=True) for r in (0, 1, 1)]
    repeats = [RepeatRecord(repeat=0, wall_s=36.0), RepeatRecord(repeat=1, wall_s=9.0, complete=False)]
    found = summarise([turn(repeat=0), turn(repeat=1)], sessions, repeats, Judgement(price=Price(machine_hour=100.0)))
    assert found.cost is not None
    assert (found.cost.total, found.cost.per_task) == (pytest.approx(1.0), pytest.approx(1.0))


def test_the_interval_of_many_values_is_as_narrow_as_they_are_many() -> None:
    """Of a median of normal values it is 1.96 times 1.2533 deviations over the root of their number, either side."""
    values = np.random.default_rng(7).normal(10, 1, 80_000)
    found = percentiles([list(values)])
    assert found is not None and found.p50.low is not None and found.p50.high is not None
    expected = 2 * 1.96 * 1.2533 / 80_000**0.5
    assert found.p50.high - found.p50.low == pytest.approx(expected, rel=0.2)
    assert found.p50.low < found.p50.value < found.p50.high


def test_reuse_counts_what_was_known_when_a_prompt_was_sent() -> None:
    system, task = "s" * 640, "t" * 640
    first = SentPrompt(0.0, 1.0, (system, task), "a" * 640)
    again = SentPrompt(2.0, 3.0, (system, task, "a" * 640, "n" * 640), "")
    early = SentPrompt(0.5, 0.9, (system, task, "a" * 640, "n" * 640), "")
    other = SentPrompt(4.0, 5.0, ("x" + system,), "")
    assert reusable_shares([first, again, other]) == [0.0, 0.75, 0.0]
    assert reusable_shares([first, early]) == [0.0, 0.5]  # the answer was not there yet
    assert reusable_shares([SentPrompt(0, 1, (), "")]) == [0.0]


def test_the_prefill_fit_tells_computed_tokens_from_time() -> None:
    found = fit([(100, 0.3), (200, 0.4), (300, 0.5)])
    assert found is not None
    assert (found.base_s, found.token_s) == (pytest.approx(0.2), pytest.approx(0.001))
    assert reused_share([turn(arrivals_s=(0.22,), prompt_tokens=100)], found) == pytest.approx(0.8)
    assert reused_share([turn(arrivals_s=(9.0,), prompt_tokens=100)], found) == 0.0
    assert fit([(100, 0.3), (100, 0.4)]) is None
    assert fit([(100, 0.5), (200, 0.4)]) is None


def test_a_summary() -> None:
    turns = [
        turn(first=True, reusable_share=0.0, by_source={"computed": 40, "device": 60}),
        turn(turn=1, started_s=2.0, ended_s=3.0, reusable_share=0.9, by_source={"computed": 40, "device": 60}),
        turn(turn=2, status=TurnStatus.ERROR, error="no", started_s=3.0, ended_s=3.0, retries=2),
        turn(turn=3, status=TurnStatus.SKIPPED, error="before"),
    ]
    sessions = [SessionRecord(repeat=0, session="s", started_s=1.0, ended_s=3.0, turns=4, ok=False)]
    judgement = Judgement(slo=Slo(ttft=0.2), price=Price(input=1.0))
    found = summarise(turns, sessions, [RepeatRecord(repeat=0, wall_s=2.0)], judgement)
    assert (found.counts.ok, found.counts.failed, found.counts.skipped, found.counts.retries) == (2, 1, 1, 2)
    assert found.output_tokens_per_s.value == 5.0 and found.turns_per_s.value == 1.0
    assert found.tokens.computed == 80 and found.tokens.by_source == {"computed": 80, "device": 120}
    assert found.hit_rates.server == 0.6 and found.hit_rates.reusable == pytest.approx(0.45)
    assert found.goodput is not None and found.goodput.share.value == pytest.approx(2 / 3)
    assert found.goodput.tasks_share.value == 0.0
    assert found.cost is not None and found.cost.per_task is None
    assert found.errors == {"no": 1}


def test_partial_repeats_do_not_blur_whole_ones() -> None:
    turns = [turn(), turn(repeat=1, arrivals_s=(9.0,))]
    repeats = [RepeatRecord(repeat=0, wall_s=1.0), RepeatRecord(repeat=1, wall_s=0.1, complete=False)]
    found = summarise(turns, [], repeats)
    assert found.ttft_later_s is not None and found.ttft_later_s.count == 1
    assert summarise(turns[1:], [], repeats[1:]).ttft_later_s is not None
    assert summarise([], [], []).counts.ok == 0


def test_a_server_that_says_nothing() -> None:
    silent = turn(prompt_tokens=None, completion_tokens=None, cached_tokens=None, reusable_share=0.5)
    found = summarise([silent], [], [RepeatRecord(repeat=0, wall_s=1.0)], Judgement(price=Price(input=1.0)))
    assert found.tokens.prompt is None and found.hit_rates.server is None and found.cost is None
    assert found.tokens.output == 3 and found.hit_rates.reusable == 0.5


def test_limits() -> None:
    rates = MachineRates(gemm_flops=1e12, stream_bytes=1e10, threads=2)
    found = limits(rates, parameters=5e8, weight_bytes=1e9)
    assert (found.prompt_token_s, found.output_token_s) == (0.001, 0.1)


def test_the_machine_and_a_process_are_seen() -> None:
    assert hardware().cores >= 1 and hardware().memory_bytes > 0
    meter = ProcessMeter(os.getpid())
    meter.start()
    used = meter.stop()
    assert used.peak_memory_bytes > 1e6 and used.processes >= 1
    gone = ProcessMeter(2**22 - 3)
    gone.start()
    assert gone.stop().peak_memory_bytes == 0
    load = BusyMeter().stop(None)
    assert load.other_cpu_share is None


def test_a_revision_outside_of_a_checkout(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert git_revision(tmp_path_factory.mktemp("bare")) is None
