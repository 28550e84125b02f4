"""Compiles every Triton kernel, with every configuration, for GPUs that are not here: ``python -m ….ahead_of_time``.

The ops are run as in a server, on small CPU tensors, with a driver that says it is the GPU in question and a hook that
takes each launch instead of letting it happen. So what is compiled is what would be launched, argument alignment and
all. A kernel fails that spills registers or wants more shared memory than the architecture has.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from . import launch_catalogue
from .cuda_config import SHARED_MEMORY_LIMIT, Arithmetic, config_for

ARCHITECTURES = (80, 90, 100)


@dataclass(frozen=True, slots=True)
class Launch:
    """What Triton would compile for one launch."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__).lstrip("_")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled kernel takes of a GPU. ``stack_bytes`` a thread: 0 unless registers spill."""

    kernel: str
    constants: str
    architecture: int
    num_warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int

    @property
    def fault(self) -> str | None:
        """Why this kernel must not be shipped, or None."""
        limit = SHARED_MEMORY_LIMIT[self.architecture]
        if self.shared_bytes > limit:
            return f"wants {self.shared_bytes} bytes of shared memory, sm_{self.architecture} has {limit}"
        return f"spills: {self.stack_bytes} bytes of stack a thread" if self.stack_bytes else None


class _AbsentGpu:
    """A driver for Triton that says which GPU it would be. Nothing can be launched on it."""

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self._architecture, 32)

    def get_current_device(self) -> int:
        return self._architecture  # a key of caches: no real GPU has this number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextlib.contextmanager
def recording(architecture: int) -> Iterator[list[Launch]]:
    """Within it every launch of a kernel is appended to the list and does not happen."""
    launches: list[Launch] = []

    def take(**event: Any) -> bool:
        compiled = event["compile"]
        options = {key: compiled[key] for key in ("num_warps", "num_stages", "enable_fp_fusion")}
        kernel = event["fn"].jit_function
        launches.append(Launch(kernel, compiled["signature"], compiled["constants"], compiled["configs"][0], options))
        return True

    knobs = triton.knobs.runtime  # pyright: ignore[reportAttributeAccessIssue]
    before = knobs.jit_cache_hook
    knobs.jit_cache_hook = take
    driver.set_active(_AbsentGpu(architecture))  # pyright: ignore[reportArgumentType]
    try:
        yield launches
    finally:
        knobs.jit_cache_hook = before
        driver._active = None


def launches_of(architecture: int) -> list[Launch]:
    """Every launch of the catalogue on ``architecture``, fast and deterministic, each once."""
    with recording(architecture) as launches:
        for arithmetic in Arithmetic:
            launch_catalogue.run_all(config_for(architecture, arithmetic))
    distinct = {_identity(launch): launch for launch in launches}
    return list(distinct.values())


def compile_launch(launch: Launch, architecture: int) -> Resources:
    """Compile for ``architecture`` and read what the binary takes. Raises: triton's errors."""
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=launch.options)
    registers, stack = _usage(compiled.asm["cubin"])
    return Resources(
        kernel=launch.name,
        constants=_constants(launch),
        architecture=architecture,
        num_warps=launch.options["num_warps"],
        registers=registers,
        stack_bytes=stack,
        shared_bytes=int(compiled.metadata.shared),
    )


def _identity(launch: Launch) -> str:
    return repr((launch.name, launch.signature, launch.constants, launch.attributes, launch.options))


def _constants(launch: Launch) -> str:
    names = list(launch.signature)
    values = {names[path[0]]: value for path, value in launch.constants.items()}
    return " ".join(f"{name}={value}" for name, value in values.items() if name.isupper())


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack a thread, as Triton's own cuobjdump reads them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path  # pyright: ignore[reportAttributeAccessIssue]
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump said nothing of registers: {text}")
    return int(found[1]), int(found[2])


def main() -> int:
    """Compile for the named architectures; print a line a kernel, or JSON; the exit status says if any fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architectures", nargs="*", type=int, default=list(ARCHITECTURES))
    parser.add_argument("--json", type=Path, help="write the resources to this file")
    arguments = parser.parse_args()
    results = [
        compile_launch(launch, architecture)
        for architecture in arguments.architectures
        for launch in launches_of(architecture)
    ]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([dataclasses.asdict(result) for result in results]))
    faults = 0
    for result in results:
        fault = result.fault
        faults += fault is not None
        sys.stdout.write(
            f"sm_{result.architecture} {result.kernel}: {result.registers} registers, {result.shared_bytes} bytes"
            f" shared, {result.num_warps} warps [{result.constants}]{'' if fault is None else ' FAILS: ' + fault}\n"
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
