"""The same seed and the same file are the same load in every process: nothing hangs on Python's hashes or zones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from sessile.bench_agent.workload.plan import Message, MessagesPrompt, SessionPlan, Turn, Workload

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests" / "bench_agent" / "traces" / "samples"

SCRIPT = """
import hashlib, sys
from pathlib import Path
from sessile.bench_agent.traces.formats import FORMATS, read_workload
from sessile.bench_agent.traces.source import BadLines
from sessile.bench_agent.workload.adjust import Adjustments, adjust
from sessile.bench_agent.workload.distributions import parse_distribution
from sessile.bench_agent.workload.plan import BlocksPrompt
from sessile.bench_agent.workload.presets import PRESETS, preset
from sessile.bench_agent.workload.synthetic import synthetic_workload
from sessile.bench_agent.workload.text import BlockTexts

samples, out = Path(sys.argv[1]), Path(sys.argv[2])
for name in PRESETS:
    print(name, synthetic_workload(name, preset(name), sessions=2, seed=5).sha256())
for sample in sorted(samples.iterdir()):
    workload = read_workload(sample, BadLines())
    changes = Adjustments(seed=3, gap=parse_distribution("exp:0.2"), fill_unrecorded=True, scale=0.5)
    print(sample.name, workload.sha256(), adjust(workload, changes).sha256())
    texts = BlockTexts()
    for session in workload.sessions:
        for turn in session.turns:
            if isinstance(turn.prompt, BlocksPrompt):
                print(hashlib.sha256(texts.text(turn.prompt).encode()).hexdigest())
    for known in FORMATS:
        if known.write is not None:
            known.write(workload, out)
            print(known.name, hashlib.sha256(out.read_bytes()).hexdigest())
"""


def test_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "load.py"
    script.write_text(SCRIPT)
    said = []
    for number, (seed, zone) in enumerate((("1", "UTC"), ("4711", "America/Los_Angeles"))):
        environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": str(ROOT / ".import-root")}
        command = [sys.executable, str(script), str(SAMPLES), str(tmp_path / f"{number}.jsonl")]
        said.append(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert said[0] == said[1] and said[0].count("\n") > 100


def test_equal_sessions_have_equal_hashes_whatever_they_were_read_from() -> None:
    """A 0.0 that was computed or read is no other than one that was left to the default."""
    turn = Turn(prompt=MessagesPrompt((Message("user", "Hi"),)))
    plain = SessionPlan(session_id="s", turns=(turn,))
    told = msgspec.json.decode(
        b'{"session_id": "s", "arrival_s": 0.0, "turns": [{"prompt": {"type": "messages", "messages":'
        b' [{"role": "user", "content": "Hi"}]}, "gap_s": 0.0, "agent": "main", "after": []}]}',
        type=SessionPlan,
    )
    assert plain == told
    hashes = {Workload(name="w", format="f", sessions=(session,)).sha256() for session in (plain, told)}
    assert len(hashes) == 1
