"""Weights in safetensors: one file, or shards with an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import blake3
import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ....kernels.linear import DenseWeight, Weight
from ....sessions.errors import ModelError
from ..hf_config import read_json

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = frozenset({"F32", "F16", "BF16"})


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, each of which exists.

    Raises:
        ModelError: there are none (pickled weights are never read), or the index names one that is missing.
    """
    index = folder / _INDEX
    if index.is_file():
        for name in (names := _indexed_files(index)):
            if Path(name).name != name:
                raise ModelError(f"{index} names the file {name!r}, which is no file of the folder", field="weight_map")
            if not _is_there(folder / name):
                raise ModelError(f"{folder} lacks {name}, which its index names", remedy="download the shard")
        if names:
            return [folder / name for name in names]
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
        raise ModelError(
            f"{folder} holds pickled weights only, which can run code and are never read",
            remedy="convert them to safetensors",
        )
    raise ModelError(f"{folder} holds no {_SINGLE} and no {_INDEX}", remedy="name a folder with the model's weights")


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no name that a file can have
        return False


def _indexed_files(index: Path) -> list[str]:
    """The files that an index names, each once."""
    try:
        weight_map = msgspec.convert(read_json(index).get("weight_map", {}), dict[str, str])
    except msgspec.ValidationError as error:
        raise ModelError(f"the weight_map of {index} does not name files: {error}", field="weight_map") from error
    return sorted(set(weight_map.values()))


class SafetensorsSource:
    """Tensors of safetensors files, mapped; headers are read at once, tensors when they are asked for.

    Raises:
        ModelError: a file is damaged or truncated, a tensor stands in two files or is of a type not in ``types``.
    """

    def __init__(self, files: list[Path], types: frozenset[str] = FLOATS) -> None:
        self._paths = files
        self._types = types
        self._file_of: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            self._add(path)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def vector(self, name: str) -> Tensor:
        return self.tensor(name).to(torch.float32)

    def matrix(self, name: str) -> Weight:
        return DenseWeight(self.tensor(name))

    def tensor(self, name: str) -> Tensor:
        """The tensor as stored, a view of the mapped file."""
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def content_hash(self) -> str:
        digest = blake3.blake3(max_threads=blake3.blake3.AUTO)
        for path in self._paths:
            digest.update_mmap(path)
        return str(digest.hexdigest())

    def _add(self, path: Path) -> None:
        try:
            file = open_safetensors(path)
            for name in file.keys():  # noqa: SIM118  not a mapping
                if name in self._file_of:
                    raise ModelError(f"tensor {name!r} stands in two files", field=name)
                part = file.get_slice(name)
                self._check_type(name, part.get_dtype(), path)
                self._file_of[name] = file
                self._shapes[name] = tuple(part.get_shape())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is damaged or truncated: {error}", remedy="download the file again") from error

    def _check_type(self, name: str, dtype: str, path: Path) -> None:
        if dtype not in self._types:
            raise ModelError(
                f"{path}: tensor {name!r} is stored as {dtype}",
                field=name,
                remedy="weights in float32, float16 or bfloat16 can be read",
            )


def open_safetensors(path: Path) -> Any:
    """The library's handle on a file, which has no types of its own."""
    return safe_open(path, framework="pt")
