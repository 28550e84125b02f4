"""The short form of the fuzzing: what was a fault once, and the same few hundred inputs for each parser each time.

The long form is ``make fuzz``.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import catalogue
import fuzzing
import pytest
from fuzzing import Target, Trial

MOST_MEMORY_MIB = 512.0  # more than before, for all inputs of a target
NUM_INPUTS = {
    "disk-index": 40,
    "disk-index-sealed": 40,
    "http": 120,
    "grpc": 80,
    "tokenizer-files": 60,
    "chat-template": 100,
    "answers": 60,
    "settings": 60,
    "bench-traces": 150,
}
OTHERS = 250


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """What is logged of bad input is not of interest here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_input_is_judged_soon_and_in_little_memory(name: str) -> None:
    target = catalogue.target(name)
    fuzzing.forget_peak()
    before = fuzzing.peak_mib()
    with target.open() as feed:
        trial = Trial(target, feed)
        for path in fuzzing.kept(target):
            trial.run(path.read_bytes())
        for content in itertools.islice(fuzzing.inputs(target, seed=0), NUM_INPUTS.get(name, OTHERS)):
            trial.run(content)
    assert not trial.faults, "\n".join(fault.trace for fault in trial.faults.values())
    assert fuzzing.peak_mib() < before + MOST_MEMORY_MIB


@pytest.mark.parametrize("name", [name for name in catalogue.NAMES if name not in ("http", "grpc")])
def test_the_seeds_are_good(name: str) -> None:
    """Changes of what is refused at once would try little."""
    target = catalogue.target(name)
    with target.open() as feed:
        refused = []
        for seed in target.seeds():
            try:
                feed(seed)
            except target.errors as error:
                refused.append(str(error))
    assert all("cannot be continued" in why for why in refused), refused  # templates without a conversation


def test_a_fault_is_found_and_kept_once() -> None:
    def feed(content: bytes) -> None:
        if b"X" in content:
            raise KeyError("not a word for bad input")
        if b"Y" in content:
            raise ValueError("bad input")

    target = Target("example", lambda: iter(()), lambda: [b"a"], (ValueError,), (b"X", b"Y"))  # type: ignore[arg-type,return-value]
    trial = Trial(target, feed)
    for content in itertools.islice(fuzzing.inputs(target, 0), 300):
        trial.run(content)
    assert [fault.place.split()[0] for fault in trial.faults.values()] == ["KeyError"]


def test_an_input_that_costs_too_much_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "MOST_CPU_S", 0.05)

    def feed(content: bytes) -> None:
        while True:
            pass

    trial = Trial(catalogue.target("settings"), feed)
    trial.run(b"")
    assert [fault.place.split()[0] for fault in trial.faults.values()] == ["Hang"]


def test_what_is_kept_belongs_to_a_target() -> None:
    folders = {path.name for path in Path(fuzzing.CORPUS).iterdir()} if fuzzing.CORPUS.is_dir() else set()
    assert folders <= set(catalogue.NAMES)
