"""What is fuzzed and how an input is judged: an answer or one of the parser's own errors, soon, in little memory."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

CORPUS = Path(__file__).parent / "corpus"
MOST_CPU_S = 10.0  # of one input
Feed = Callable[[bytes], None]
Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """One parser. ``open`` gives what an input is fed to, and cleans up behind it.

    ``errors`` are the parser's own words for bad input; anything else is a fault. ``words`` are what inputs are made
    of, ``mutate`` knows their structure. ``most_bytes`` bounds the inputs.
    """

    name: str
    open: Callable[[], AbstractContextManager[Feed]]
    seeds: Callable[[], list[bytes]]
    errors: tuple[type[Exception], ...]
    words: tuple[bytes, ...] = ()
    mutate: Mutate | None = None
    most_bytes: int = 1 << 16


class Hang(BaseException):
    """An input costs more processor time than any may. No parser's ``except Exception`` swallows it."""


@dataclass
class Fault:
    """An input that was not judged as it should be. ``place`` says where; two with one place are one fault."""

    content: bytes
    place: str
    trace: str


@dataclass
class Trial:
    """Feeds inputs to an open target and keeps the faults."""

    target: Target
    feed: Feed
    num_inputs: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)

    def run(self, content: bytes) -> None:
        """Try one input."""
        self.num_inputs += 1
        try:
            with processor_time(MOST_CPU_S):
                self.feed(content)
        except self.target.errors:
            return
        except (Exception, Hang) as error:
            place = place_of(error)
            self.faults.setdefault(place, Fault(content, place, traceback.format_exc()))


def place_of(error: BaseException) -> str:
    """The kind of an error and the line of ours that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/fuzz/" not in frame.filename and "site-packages" not in frame.filename]
    frame = (ours or list(frames))[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"


@contextlib.contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Raise ``Hang`` where the block costs more: the machine's load does not count."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Hang(f"more than {seconds:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def mutated(content: bytes, rng: random.Random, words: tuple[bytes, ...], others: list[bytes]) -> bytes:
    """``content`` with one to four changes: bits, numbers, words, parts left out, doubled or taken from ``others``."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice((1, 2, 4, 8, rng.randrange(1, 64)))
        match rng.randrange(8):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << rng.randrange(8)
            case 1:
                changed[at : at + length] = rng.randbytes(length)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                changed[at : at + width] = rng.choice(_NUMBERS).to_bytes(8, "little")[:width]
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at:at] = changed[at : at + length] * rng.choice((1, 2, 16))
            case 5:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                changed[at : at + length] = other[start : start + rng.randrange(1, 256)]
            case 6 if words:
                changed[at : at + rng.choice((0, length))] = rng.choice(words)
            case _:
                del changed[at:]
    return bytes(changed)


_NUMBERS = (
    0,
    1,
    2,
    7,
    *((1 << bits) - one for bits in (7, 8, 16, 24, 31, 32, 40, 63) for one in (1, 0)),
    (1 << 64) - 1,
)


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """The seeds, then changed ones for ever; the same for the same ``seed``."""
    rng = random.Random(f"{target.name} {seed}")
    seeds = target.seeds()
    pool = list(seeds)
    yield from seeds
    while True:
        content = rng.choice(pool)
        if target.mutate is not None and rng.random() < 0.7:
            content = target.mutate(content, rng)
        else:
            content = mutated(content, rng, target.words, seeds)
        content = content[: target.most_bytes]
        if rng.random() < 0.02:
            pool[len(seeds) :] = [*pool[len(seeds) :], content][-256:]  # changes of changes
        yield content


def kept(target: Target) -> list[Path]:
    """Inputs that were faults once."""
    folder = CORPUS / target.name
    return sorted(folder.iterdir()) if folder.is_dir() else []


def peak_mib() -> float:
    """The most memory that this process had since ``forget_peak``, or since it began where that is not to be had."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """From here on ``peak_mib`` is about what follows."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
