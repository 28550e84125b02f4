"""Checks of what is installed."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from .finding import Finding, Health

_NEEDED = (
    "sessile",
    "torch",
    "numpy",
    "fastapi",
    "uvicorn",
    "uvloop",
    "grpcio",
    "pyzmq",
    "msgspec",
    "sqlite-utils",
    "tokenizers",
    "llguidance",
    "safetensors",
    "gguf",
    "huggingface_hub",
)
_OPTIONAL = ("triton", "lmcache")
_INSTALL = "pip install 'sessile[server]'"
_COMPILERS = ("c++", "g++", "clang++")


def missing_packages() -> list[str]:
    """Packages of the server that are not installed."""
    return [name for name in _NEEDED if _version(name) is None]


def check_software() -> Iterator[Finding]:
    """Versions of Python and of the packages, and the compiler that builds the CPU kernels."""
    yield Finding(topic="python", found=f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    missing = missing_packages()
    versions = [f"{name} {found}" for name in (*_NEEDED, *_OPTIONAL) if (found := _version(name))]
    yield Finding(topic="packages", found=", ".join(versions))
    if missing:
        yield Finding(
            topic="packages", found=f"not installed: {', '.join(missing)}", health=Health.BROKEN, remedy=_INSTALL
        )
    yield _compiler()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _compiler() -> Finding:
    path = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if path is None:
        return Finding(
            topic="compiler",
            found="none: the CPU kernels cannot be built, plain torch serves instead",
            health=Health.WARNING,
            remedy="install g++ (Debian: apt install g++), the kernels are built once at the first start",
        )
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20)  # noqa: S603
    first = (done.stdout or done.stderr).splitlines()
    return Finding(topic="compiler", found=f"{path}: {first[0] if first else 'no version'}")
