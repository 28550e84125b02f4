"""Measures the linter: a trace of 100 MB, 100,000 lines of Python. `python -m sessile.prompt_lint.bench`.

Prints CPU and wall seconds, and the peak memory of any child process so far.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_REQUESTS = 3750
_TURNS = 25
_WORDS = [f"word{i}" for i in range(3000)]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def write_trace(path: Path) -> None:
    """A trace of about 100 MB: 150 sessions of 25 turns; a third have a clock at the head of the system text."""
    rng = random.Random(7)  # noqa: S311 - the same words each time
    functions = [
        {"name": f"tool_{i}", "description": _text(rng, 30), "parameters": {"type": "object"}} for i in range(8)
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    rules = "\n".join(_text(rng, 14) for _ in range(60))
    messages: list[dict[str, str]] = []
    with path.open("w", encoding="utf-8") as out:
        for number in range(_REQUESTS):
            turn = number % _TURNS
            if turn == 0:
                messages = []
            messages.append({"role": "user", "content": _text(rng, 40)})
            clock = f"It is 10:{turn:02d}:05.\n" if number // _TURNS % 3 == 0 else ""
            body = {"model": "m", "messages": [{"role": "system", "content": clock + rules}, *messages], "tools": tools}
            record = {"request": body, "session_id": f"s{number // _TURNS}", "timestamp": 1_790_000_000 + 3 * number}
            out.write(json.dumps(record) + "\n")
            messages.append({"role": "assistant", "content": _text(rng, 30)})
            messages.append({"role": "user", "content": "\n".join(_text(rng, 12) for _ in range(10))})


def write_code(folder: Path) -> None:
    """100 files of 1,000 lines that build prompts."""
    part = (
        "def build_{n}(client, history, question, registry):\n"
        "    rules = load_rules('{n}')\n"
        "    lines = [f'- {{name}}: {{registry[name].doc}}' for name in sorted(registry)]\n"
        "    system = 'You are a desk.\\n' + '\\n'.join(lines) + rules\n"
        "    messages = [{{'role': 'system', 'content': system}}, *history]\n"
        "    messages.append({{'role': 'user', 'content': f'{{question}} ({n})'}})\n"
        "    answer = client.chat.completions.create(model='m', messages=messages)\n"
        "    history.append({{'role': 'assistant', 'content': answer.choices[0].message.content}})\n"
        "    return answer\n\n"
    )
    for i in range(100):
        (folder / f"part_{i}.py").write_text("".join(part.format(n=f"{i}_{k}") for k in range(100)), encoding="utf-8")


def measure(command: list[str]) -> tuple[float, float, float]:
    """(CPU seconds, wall seconds, peak MB of any child so far) of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - our own command
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, after.ru_maxrss / 1024


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m sessile.prompt_lint.bench", description=__doc__)
    parser.add_argument("folder", nargs="?", help="measure this folder's Python instead of a synthetic one")
    parser.add_argument("--tokenizer", help="measure the trace once more with this tokenizer")
    parser.add_argument("--rivals", help="folder with the commands promptcachelint and cachelint, to run beside")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, bodies, code = folder / "trace.jsonl", folder / "bodies.jsonl", folder / "code"
        code.mkdir()
        write_trace(trace)
        write_code(code)
        ours = [sys.executable, "-m", "sessile.prompt_lint.cli", "check", "--isolated", "--statistics"]
        size = trace.stat().st_size / 1e6
        _report(f"trace, {size:.0f} MB", [*ours, str(trace)])
        if given.tokenizer:
            _report("the same with a tokenizer", [*ours, "--tokenizer", given.tokenizer, str(trace)])
        sources = given.folder or str(code)
        lines = sum(p.read_bytes().count(b"\n") for p in Path(sources).rglob("*.py"))
        _report(f"code, {lines:,} lines", [*ours, sources])
        if given.rivals:
            programs = Path(given.rivals)
            records, bodies = _rewritten(trace, folder)
            _report("promptcachelint, the same trace", [str(programs / "promptcachelint"), "report", str(records)])
            bare = [str(programs / "cachelint"), "analyze", "--provider", "openai", str(bodies)]
            _report("cachelint, the same bodies", bare)


def _rewritten(trace: Path, folder: Path) -> tuple[Path, Path]:
    """The trace in the forms that promptcachelint and cachelint read: its own records, and bodies alone."""
    records, bodies = folder / "records.jsonl", folder / "bodies.jsonl"
    with trace.open(encoding="utf-8") as lines, records.open("w") as own, bodies.open("w") as bare:
        for line in lines:
            record = json.loads(line)
            body, session, at = record["request"], record["session_id"], record["timestamp"]
            bare.write(json.dumps(body) + "\n")
            own.write(json.dumps({"provider": "openai", "body": body, "session_id": session, "at": at}) + "\n")
    return records, bodies


def _report(what: str, command: list[str]) -> None:
    cpu, wall, memory = measure(command)
    print(f"{what}: {cpu:.1f} s CPU, {wall:.1f} s wall, peak {memory:.0f} MB")  # noqa: T201


if __name__ == "__main__":
    main()
