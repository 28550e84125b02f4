"""Builds the C++ kernels once for each (sources, compiler, level) and keeps the result in the user's cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .features import Level

logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]  # what is being done, and how much of it, 0 to 1

KERNELS = Path(__file__).resolve().parent.parent
# No contraction: a multiply and an add are fused exactly where the source says so, on every level and compiler.
_FLAGS = ["-O3", "-std=c++20", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-Wno-psabi"]


class BuildError(Exception):
    """The kernels cannot be built here; the message says why in one line."""


def ensure_built(level: Level, progress: Progress) -> Path:
    """The shared library for ``level``, built now unless it is in the cache.

    Safe when several processes start at once: one builds, the others wait; a killed build leaves nothing behind.
    Raises: BuildError.
    """
    flags = [*_FLAGS, *level.compiler_flags, f"-DSESSILE_LEVEL={level.value}"]
    folder = cache_folder()
    target = folder / f"sessile-kernels-{level.label}-{_fingerprint(flags)}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not target.exists():
                _build(level, flags, target, progress)
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error}") from error
    return target


def cache_folder() -> Path:
    """``$SESSILE_CACHE_DIR/kernels``, else ``sessile/kernels`` in the user's cache folder."""
    if own := os.environ.get("SESSILE_CACHE_DIR"):
        return Path(own) / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sessile" / "kernels"


def _build(level: Level, flags: list[str], target: Path, progress: Progress) -> None:
    stage = f"building the CPU kernels for {level.label} (once, about half a minute)"
    progress(stage, 0.0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        built = _compile(Path(folder), flags, f"sessile_kernels_{level.label}")
        os.replace(built, target)
    logger.info("built the CPU kernels for %s in %.1f s", level.label, time.monotonic() - started)
    progress(stage, 1.0)


def _compile(folder: Path, flags: list[str], name: str) -> Path:
    from torch.utils import cpp_extension  # slow to import, and needed only here

    try:
        cpp_extension.load(
            name,
            _translation_units(folder),
            extra_cflags=flags,
            extra_ldflags=["-pthread"],
            build_directory=str(folder),
            is_python_module=False,
        )
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        logger.debug("building the CPU kernels failed:\n%s", error)
        raise BuildError(lines[0]) from error
    return folder / f"{name}.so"


def _translation_units(folder: Path) -> list[str]:
    """Two files that include the sources: they compile side by side, and take half the time of a file for each."""
    sources = [path for path in _sources() if path.suffix == ".cpp"]
    largest = KERNELS / "linear" / "cpu.cpp"
    units = {"linear.cpp": [largest], "others.cpp": [path for path in sources if path != largest]}
    for name, included in units.items():
        (folder / name).write_text("".join(f'#include "{path}"\n' for path in included))
    return [str(folder / name) for name in units]


def _sources() -> list[Path]:
    return sorted(path for path in KERNELS.glob("*/*") if path.suffix in (".cpp", ".h"))


def _fingerprint(flags: list[str]) -> str:
    digest = hashlib.sha256()
    for part in (*flags, _compiler_version()):
        digest.update(part.encode() + b"\0")
    for source in _sources():
        digest.update(source.relative_to(KERNELS).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _compiler_version() -> str:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return "none"
    found = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return f"{compiler} {found.stdout}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the file's lock, which the system drops if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
