"""Lines of the front and of the engine stand in one log, and look alike."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SERVER = Path(__file__).resolve().parents[2] / "server"


def test_a_line_has_the_time_the_level_and_who_says_it() -> None:
    program = (
        "import logging; from sessile.server.log_lines import log_to_stderr; log_to_stderr('info')\n"
        "logging.getLogger('a.b').info('c'); logging.getLogger('a.b').debug('d')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO a\.b: c\n", done.stderr)


def test_no_process_has_a_form_of_its_own() -> None:
    own = [path.name for path in SERVER.rglob("*.py") if "basicConfig(" in path.read_text()]
    assert own == ["log_lines.py"]
