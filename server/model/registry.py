"""From a model's files to a model that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import blake3
import msgspec
import torch

from ...sessions.errors import ModelError
from .assemble import assemble
from .causal_lm import CausalLM, Precision
from .config import ModelConfig
from .convert import CONFIG_FILE, WEIGHTS_FILE
from .gguf_config import config_from_gguf
from .hf_config import config_from_hf, read_json
from .source import ModelSource, SourceKind, resolve_model, unwatched
from .weights.gguf_file import GGUFFile
from .weights.gguf_source import GGUFSource
from .weights.int4_checkpoint import Int4CheckpointSource, int4_format
from .weights.prepared import PreparedSource
from .weights.safetensors_source import FLOATS, SafetensorsSource, weight_files
from .weights.tensor_source import TensorSource, expected_shapes

__all__ = ["LoadedModel", "load_model", "resolve_model"]

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. ``fingerprint``: BLAKE3 (hexadecimal) over weights, configuration and precision."""

    name: str
    config: ModelConfig
    model: CausalLM
    fingerprint: str


def load_model(
    source: ModelSource, *, device: torch.device | str, dtype: Precision | str, progress: Progress = unwatched
) -> LoadedModel:
    """Read, check and pack a model's weights. ``dtype`` is ``bfloat16`` or ``float32``.

    Raises:
        ModelError: an unknown family, or weights that are missing, surplus, misshapen, damaged or unreadable.
    """
    precision = _precision(dtype)
    progress("read the configuration", 0.0)
    config, tensors = _open(source)
    model = assemble(config, tensors, torch.device(device), precision, progress)
    fingerprint = _fingerprint(tensors.content_hash(), config, precision)
    return LoadedModel(source.name, config, model, fingerprint)


def _precision(dtype: Precision | str) -> Precision:
    try:
        return Precision(dtype)
    except ValueError:
        known = " or ".join(Precision)
        raise ModelError(f"the dtype is {dtype!r}", field="dtype", remedy=f"it must be {known}") from None


def _open(source: ModelSource) -> tuple[ModelConfig, TensorSource]:
    match source.kind:
        case SourceKind.FOLDER:
            return _open_folder(source.path)
        case SourceKind.GGUF:
            file = GGUFFile(source.path)
            config = config_from_gguf(file)
            return config, GGUFSource(file, config)
        case SourceKind.PREPARED:
            assert source.content_hash is not None
            config = msgspec.json.decode((source.path / CONFIG_FILE).read_bytes(), type=ModelConfig)
            return config, PreparedSource(source.path / WEIGHTS_FILE, source.content_hash)


def _open_folder(folder: Path) -> tuple[ModelConfig, TensorSource]:
    path = folder / "config.json"
    values = read_json(path)
    config = config_from_hf(values, str(path))
    quantization = values.get("quantization_config")
    if quantization is None:
        return config, SafetensorsSource(weight_files(folder))
    if not isinstance(quantization, dict):
        raise ModelError(f"quantization_config in {path} is no object", field="quantization_config")
    form = int4_format(quantization, str(path))
    biases = frozenset(name for name in expected_shapes(config) if name.endswith(".bias"))
    files = SafetensorsSource(weight_files(folder), FLOATS | {"I32"})
    return config, Int4CheckpointSource(files, form, biases)


def _fingerprint(content_hash: str, config: ModelConfig, precision: Precision) -> str:
    digest = blake3.blake3(content_hash.encode())
    digest.update(msgspec.json.encode(config, order="sorted"))
    digest.update(precision.value.encode())
    return str(digest.hexdigest())
