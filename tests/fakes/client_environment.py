"""A Python that has agent frameworks beside what the project's environment has.

Some of them hold packages back that ours needs newer, and one brings a plugin for pytest: so they get an environment of
their own, laid over ours. It is made once for each list of versions, beside the interpreter that runs the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[1] / "e2e" / "client-requirements.txt"
INSTALL_S = 280.0


def client_python() -> Path:
    """The interpreter; skips the test where its packages cannot be had."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / f"clients-{digest}"
    try:
        with (Path(sys.prefix) / "clients.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
            if not (folder / "complete").exists():
                _make(folder)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"the agent frameworks cannot be installed here: {error}")
    return folder / "bin" / "python"


def _make(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(with_pip=False).create(folder)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    base = sysconfig.get_paths()["purelib"]
    (site / "zz_base.pth").write_text(f"import site; site.addsitedir({base!r})\n")  # after its own
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*command, "-r", str(REQUIREMENTS)], check=True, capture_output=True, timeout=INSTALL_S)
    (folder / "complete").touch()
