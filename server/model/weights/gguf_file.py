"""A GGUF file: its header, and its tensors as views of the mapped file.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every length in the header is checked against
the file before anything is allocated for it, so a truncated or hostile file costs no more than its own size.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ....sessions.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_COUNT = 1 << 24  # of keys, of tensors
_MAX_KEY_BYTES = 1 << 16
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, np.dtype[Any]] = {
    code: np.dtype(kind)
    for code, kind in {
        0: "<u1",
        1: "<i1",
        2: "<u2",
        3: "<i2",
        4: "<u4",
        5: "<i4",
        6: "<f4",
        7: "?",
        10: "<u8",
        11: "<i8",
        12: "<f8",
    }.items()
}

Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies. ``shape`` is outermost first, as torch has it (the file stores it the other way round)."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # bytes from the file's start
    num_bytes: int


class GGUFFile:
    """A mapped GGUF file.

    ``metadata`` holds scalars as Python values, arrays of strings as lists and arrays of numbers as numpy arrays.

    Raises:
        ModelError: the file is no GGUF file, is damaged or is shorter than its header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        header = _Header(self._map, path)
        header.check_magic()
        num_tensors, num_keys = header.count("tensors"), header.count("keys")
        self.metadata: Metadata = header.metadata(num_keys)
        infos = [header.tensor() for _ in range(num_tensors)]
        start = header.padded_position(self.metadata.get("general.alignment", 32))
        self.tensors: Mapping[str, GGUFTensor] = _placed(infos, start, len(self._map), path)

    @property
    def architecture(self) -> str:
        """``general.architecture``, ``llama`` or ``qwen3`` for instance."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str):
            raise ModelError(f"{self.path} does not name its architecture", field="general.architecture")
        return value

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor as they lie in the file, [rows, bytes of a row]; a view, do not write."""
        tensor = self.tensors[name]
        rows = prod(tensor.shape[:-1])
        flat = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        return flat.reshape(rows, tensor.num_bytes // max(rows, 1))


class _Header:
    """Reads the header front to back; each read is checked against the file's end."""

    def __init__(self, source: mmap.mmap, path: Path) -> None:
        self._source = source
        self._path = path
        self._position = 0

    def check_magic(self) -> None:
        if self._take(4) != _MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise ModelError(
                f"{self._path} is GGUF version {version}; versions 2 and 3 (little-endian) can be read",
                remedy="convert the model again with a current llama.cpp",
            )

    def count(self, what: str) -> int:
        value = self._number("<Q")
        if value > _MAX_COUNT:
            raise self._damaged(f"it claims {value} {what}")
        return value

    def metadata(self, num_keys: int) -> Metadata:
        found: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string(_MAX_KEY_BYTES)
            if key in found:
                raise self._damaged(f"key {key!r} stands twice")
            found[key] = self._value(self._number("<I"), key)
        return found

    def tensor(self) -> GGUFTensor:
        name = self._string(_MAX_KEY_BYTES)
        num_dimensions = self._number("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name!r} claims {num_dimensions} dimensions")
        shape = tuple(reversed([self._number("<Q") for _ in range(num_dimensions)]))
        type_code = self._number("<I")
        offset = self._number("<Q")
        try:
            kind = GGMLQuantizationType(type_code)
        except ValueError:
            raise ModelError(f"{self._path}: tensor {name!r} has the unknown type {type_code}", field=name) from None
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        if not shape or shape[-1] % block_size or prod(shape) > 1 << 48:
            raise self._damaged(f"tensor {name!r} has the shape {shape}, which {kind.name} cannot hold")
        return GGUFTensor(name, kind, shape, offset, prod(shape) // block_size * block_bytes)

    def padded_position(self, alignment: Any) -> int:
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise self._damaged(f"its alignment is {alignment!r}")
        return -(-self._position // alignment) * alignment

    def _value(self, code: int, key: str) -> Any:
        if code == _STRING:
            return self._string(len(self._source))
        if code == _ARRAY:
            return self._array(key)
        if code not in _SCALARS:
            raise self._damaged(f"key {key!r} has the unknown type {code}")
        kind = _SCALARS[code]
        return np.frombuffer(self._take(kind.itemsize), kind)[0].item()

    def _array(self, key: str) -> Any:
        code, length = self._number("<I"), self._number("<Q")
        if code == _STRING:
            self._check_room(length * 8, key)
            return self._strings(length)
        if code not in _SCALARS:
            raise self._damaged(f"key {key!r} is an array of type {code}")
        kind = _SCALARS[code]
        self._check_room(length * kind.itemsize, key)
        return np.frombuffer(self._take(length * kind.itemsize), kind)

    def _strings(self, length: int) -> list[str]:
        read: Callable[[int], str] = self._string
        limit = len(self._source)
        return [read(limit) for _ in range(length)]

    def _string(self, limit: int) -> str:
        length = self._number("<Q")
        if length > limit:
            raise self._damaged(f"a string of {length} bytes is claimed at byte {self._position}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._damaged(f"the string before byte {self._position} is not UTF-8") from None

    def _number(self, layout: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout)))[0])

    def _take(self, num_bytes: int) -> bytes:
        end = self._position + num_bytes
        if end > len(self._source):
            raise self._damaged("it ends inside its header")
        taken = self._source[self._position : end]
        self._position = end
        return taken

    def _check_room(self, num_bytes: int, key: str) -> None:
        if num_bytes > len(self._source) - self._position:
            raise self._damaged(f"the array {key!r} is longer than the file")

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is damaged: {what}", remedy="download or convert the file again")


def _placed(infos: list[GGUFTensor], start: int, file_size: int, path: Path) -> dict[str, GGUFTensor]:
    """The tensors by name with offsets from the file's start, each inside the file."""
    placed: dict[str, GGUFTensor] = {}
    for info in infos:
        offset = start + info.offset
        if offset + info.num_bytes > file_size:
            raise ModelError(
                f"{path} is truncated: tensor {info.name!r} ends at byte {offset + info.num_bytes} of {file_size}",
                field=info.name,
                remedy="download the file again",
            )
        if info.name in placed:
            raise ModelError(f"{path} is damaged: tensor {info.name!r} stands twice", field=info.name)
        placed[info.name] = GGUFTensor(info.name, info.type, info.shape, offset, info.num_bytes)
    return placed
