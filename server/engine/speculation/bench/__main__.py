"""Runs one of the benchmarks and prints a table."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from rich.console import Console

from ....model.source import resolve_model
from ....text.tokenizer_files import load_tokenizer
from ..drafter import Drafter, NoDrafts
from ..speculator import Speculator
from ..step_cost import StepCost
from .acceptance import TYPICAL_COST, proposer, read_answers, tell
from .overhead import measure
from .random_text import compare, load

console = Console(highlight=False, soft_wrap=True)
FLAT_COST = {1: 1.0, 512: 1.2}  # drafts pay always: the most work


def _acceptance(arguments: argparse.Namespace) -> None:
    encode = load_tokenizer(resolve_model(None)).encode_inside
    for folder in arguments.traces:
        answers = read_answers(folder, encode, arguments.most)
        for name in ("ngram", "suffix"):
            for longest in (7, 15):
                found = tell(answers, name, longest)
                console.print(
                    f"{folder.name:10} {name:6} up to {longest:2}: {found.tokens / found.steps:.2f} tokens a step, "
                    f"{found.accepted / found.steps:.2f} of {found.drafted / found.steps:.2f} drafts accepted, "
                    f"{found.seconds / found.steps * 1e6:.0f} us a step, {found.bytes_a_token:.1f} bytes a token"
                )


def _overhead(arguments: argparse.Namespace) -> None:
    for label, cost in (("typical cost", TYPICAL_COST), ("rows are free", FLAT_COST)):
        for name in ("off", "ngram", "suffix"):
            drafter: Drafter = NoDrafts()
            if name != "off":
                drafter = Speculator(proposer(name)[0], StepCost(512, cost), longest=7)
            times = measure(drafter, arguments.turns, arguments.context, arguments.steps)
            console.print(
                f"{label:13} {name:6}: {statistics.median(times.whole):6.0f} us a step (best {min(times.whole):.0f}), "
                f"of these guessing {statistics.median(times.drafting):.0f}; {times.drafted_a_step:.1f} drafts a step"
            )


def _random(arguments: argparse.Namespace) -> None:
    model = load()
    for batch in arguments.batch:
        rounds = compare(model, batch, arguments.steps, arguments.rounds)
        off, auto = (statistics.median(seconds) * 1e3 for seconds in zip(*rounds, strict=True))
        ratios = sorted(with_it / without - 1 for without, with_it in rounds)
        console.print(
            f"batch {batch:2}: off {off:.2f} ms a token, auto {auto:.2f} ms: {statistics.median(ratios):+.1%} "
            f"({ratios[0]:+.1%} to {ratios[-1]:+.1%})"
        )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m sessile.server.engine.speculation.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    acceptance = commands.add_parser("acceptance", help="recorded answers, told token by token, without a model")
    acceptance.add_argument("traces", nargs="+", type=Path, help="folders of recorded requests (*.jsonl)")
    acceptance.add_argument("--most", type=int, default=1000, help="requests of each folder, at most")
    acceptance.set_defaults(run=_acceptance)
    overhead = commands.add_parser("overhead", help="Python's time in a step, scheduler and speculation together")
    overhead.add_argument("--turns", type=int, default=64)
    overhead.add_argument("--context", type=int, default=8000)
    overhead.add_argument("--steps", type=int, default=200)
    overhead.set_defaults(run=_overhead)
    random = commands.add_parser("random", help="the embedded model saying random tokens, with speculation and without")
    random.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    random.add_argument("--steps", type=int, default=64)
    random.add_argument("--rounds", type=int, default=5)
    random.set_defaults(run=_random)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
