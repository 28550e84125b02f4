"""A GGUF model as a folder of files that load at once."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..text.gguf_tokenizer import tokenizer_from_gguf
from ..text.tokenizer_files import TextConfig
from .gguf_config import config_from_gguf
from .weights.gguf_file import GGUFFile
from .weights.gguf_source import GGUFSource
from .weights.prepared import write_prepared

CONFIG_FILE = "model.json"
WEIGHTS_FILE = "weights.safetensors"


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write ``model.json``, ``weights.safetensors``, ``tokenizer.json`` and ``text.json`` into ``folder``.

    Raises:
        ModelError: the file is damaged, or holds what cannot be read.
    """
    file = GGUFFile(gguf)
    config = config_from_gguf(file)
    (folder / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    write_prepared(GGUFSource(file, config), folder / WEIGHTS_FILE)
    backend, special, template = tokenizer_from_gguf(file.metadata)
    backend.save(str(folder / "tokenizer.json"))
    text = TextConfig.of(special, template)
    (folder / "text.json").write_bytes(msgspec.json.format(msgspec.json.encode(text)))
