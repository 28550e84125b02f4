"""The long form of the fuzzing: each target for some seconds in a process of its own, guided by coverage with atheris.

Faults are written to files, one for each place that they come from; move them to ``corpus/`` with the repair.

    make fuzz FUZZ_FLAGS="--seconds 300 gguf export-sealed"
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.util
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 60.0
MOST_MEMORY = 6 << 30  # of the process's addresses; torch takes some of it at once
HUNG_S = 120.0  # without an end of one input, in code that does not listen


def main() -> int:
    arguments = _arguments()
    if arguments.one:
        return _one(arguments)
    sys.path[:0] = [str(Path(__file__).parents[1] / "fakes")]
    from catalogue import NAMES

    faults = 0
    for name in arguments.targets or NAMES:
        faults += _in_a_process(name, arguments)
    return 1 if faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fuzz the parsers.")
    parser.add_argument("targets", nargs="*", help="names of targets; all by default")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="where the random changes begin")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder for inputs that are faults")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_a_process(name: str, arguments: argparse.Namespace) -> int:
    """Fuzz one target; returns how many faults it has."""
    folder: Path = arguments.out / name
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--one", name, f"--seconds={arguments.seconds}", f"--out={folder}"]
    command += [f"--seed={arguments.seed}", *(["--plain"] if arguments.plain else [])]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    try:
        found: dict[str, Any] = json.loads(result.read_text())
    except (OSError, ValueError):
        print(f"{name:20} died (exit status {done.returncode})\n{done.stderr[-3000:]}", flush=True)
        return 1
    faults = len(found["faults"])
    print(f"{name:20} {found['inputs']:>9,} inputs, {found['peak_mib']:.0f} MiB at most, {faults} faults", flush=True)
    for place in found["faults"]:
        print(f"    {place}")
    ended = found["ended"]
    if not ended:
        print(f"    it died in the middle (exit status {done.returncode})\n{done.stderr[-3000:]}")
    return len(found["faults"]) + (not ended)


def _one(arguments: argparse.Namespace) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    (name,) = arguments.targets
    guided = not arguments.plain and importlib.util.find_spec("atheris") is not None
    with _imports(guided):
        from catalogue import target as target_named
        from fuzzing import Trial, inputs, peak_mib

        target = target_named(name)
    with target.open() as feed:
        trial = Trial(target, feed)
        report = Report(trial, arguments.out, peak_mib)
        if guided:
            _guided(target, report, arguments)  # does not come back
        else:
            ends = time.monotonic() + arguments.seconds
            for content in inputs(target, arguments.seed):
                if time.monotonic() > ends:
                    break
                faulthandler.dump_traceback_later(HUNG_S, exit=True)
                report.run(content)
            report.write(ended=True)
    return 0


@contextlib.contextmanager
def _imports(guided: bool) -> Iterator[None]:
    sys.path[:0] = [str(Path(__file__).parents[1] / "fakes")]
    if not guided:
        yield
        return
    import atheris

    import sessile.kernels  # noqa: F401  not to be instrumented: it is no parser

    with atheris.instrument_imports(include=["sessile", "jinja2"]):
        yield


class Report:
    """Runs inputs, and keeps on the disk what came of them."""

    def __init__(self, trial: Any, folder: Path, peak_mib: Any) -> None:
        self._trial = trial
        self._folder = folder
        self._peak_mib = peak_mib
        self._written = 0.0

    def run(self, content: bytes) -> None:
        before = len(self._trial.faults)
        self._trial.run(content)
        if len(self._trial.faults) > before or time.monotonic() > self._written + 2:
            self.write(ended=False)

    def write(self, *, ended: bool) -> None:
        self._written = time.monotonic()
        for place, fault in self._trial.faults.items():
            name = "".join(letter if letter.isalnum() else "-" for letter in place)
            (self._folder / name).write_bytes(fault.content)
            (self._folder / f"{name}.txt").write_text(fault.trace, errors="replace")
        found = {
            "inputs": self._trial.num_inputs,
            "peak_mib": self._peak_mib(),
            "faults": sorted(self._trial.faults),
            "ended": ended,
        }
        (self._folder / "result.json").write_text(json.dumps(found))


def _guided(target: Any, report: Report, arguments: argparse.Namespace) -> None:
    """Let atheris choose the inputs. It ends the process."""
    import atheris
    from fuzzing import mutated

    corpus = Path(tempfile.mkdtemp(prefix="fuzz-"))
    seeds = target.seeds()
    for index, seed in enumerate(seeds):
        (corpus / f"seed-{index}").write_bytes(seed)
    ends = time.monotonic() + arguments.seconds

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(content, most))
        if target.mutate is not None and content and rng.random() < 0.7:
            return target.mutate(content, rng)[:most]
        return mutated(content, rng, target.words, seeds)[:most]

    def one(content: bytes) -> None:
        report.run(content)
        if time.monotonic() > ends:
            report.write(ended=True)
            raise KeyboardInterrupt

    flags = [
        f"-max_len={target.most_bytes}",
        "-rss_limit_mb=0",
        f"-timeout={HUNG_S:.0f}",
        f"-artifact_prefix={corpus}/",
        f"-seed={arguments.seed % (1 << 32)}",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
